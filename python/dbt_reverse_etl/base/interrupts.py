"""How SIGINT and SIGTERM end a command: by KeyboardInterrupt in the main thread, and never in the middle of a call to Spark."""

from __future__ import annotations

import contextvars
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import ParamSpec, TypeVar

INTERRUPTED = 130  # what a shell says of a process that SIGINT ended
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_GLANCE = 0.2  # seconds between two looks at a signal
P = ParamSpec("P")
T = TypeVar("T")
_Answer = tuple[list[T], BaseException | None]


class Interrupts:
    """The two signals, as long as they are ours.

    Attributes:
        received: one came. What fails from then on fails because of it.
    """

    received = False
    _number = signal.SIGINT

    def __call__(self, number: int, _: object) -> None:
        """As a handler of signals."""
        self._number = signal.Signals(number)
        self.received = True
        raise KeyboardInterrupt

    def look(self) -> None:
        """Raise the interrupt that somebody swallowed, as Python does in a destructor."""
        if self.received:
            raise KeyboardInterrupt

    def hand_on(self) -> bool:
        """Call the handler that the signal would have had; False: nobody was called, for it is that of the system, of Python, or of Spark."""
        handler = signal.getsignal(self._number)
        # That of Spark would cancel the jobs of others.
        is_of_spark = str(getattr(handler, "__module__", "")).startswith("pyspark.")
        if not callable(handler) or handler is signal.default_int_handler or is_of_spark:
            return False
        handler(self._number, None)
        return True


_held: list[Interrupts] = []


@contextmanager
def interrupts() -> Iterator[Interrupts]:
    """Both signals raise KeyboardInterrupt, whatever others want of them: Spark's own handler calls Spark in the middle of another call.

    Within another one, that one holds. Only the main thread may say what becomes of a signal.
    """
    if _held or threading.current_thread() is not threading.main_thread():
        yield _held[0] if _held else Interrupts()
        return
    ours, before = Interrupts(), {number: signal.getsignal(number) for number in _SIGNALS}
    _held.append(ours)
    _handle(ours)
    try:
        yield ours
    finally:
        _held.clear()
        for number, handler in before.items():
            if handler is not None:  # one of C, which Python cannot give back
                signal.signal(number, handler)


def end_at_once() -> None:
    """From here on a signal ends the process: it has not begun, or is ending, and nobody wants to read where. An exception in the middle of an
    import may end it otherwise.
    """
    _handle(lambda *_: os._exit(INTERRUPTED))


def end_in_peace() -> None:
    """From here on a signal is too late: the process ends with the code that it has. Python's own end gives the signals back, and dies of one."""
    _handle(signal.SIG_IGN)


def _handle(handler: Callable[..., None] | signal.Handlers) -> None:
    for number in _SIGNALS:
        # Ignored, as `nohup`, or a shell for what it starts with &, wants it; None: a handler of C, which Python cannot give back.
        if signal.getsignal(number) not in (signal.SIG_IGN, None):
            signal.signal(number, handler)


def in_time(work: Callable[[], object], seconds: float) -> None:
    """Call `work` although a signal has come, and wait no longer than this for it."""
    thread = threading.Thread(target=contextvars.copy_context().run, args=(work,), daemon=True, name="in time")
    thread.start()
    thread.join(seconds)


def within(work: Callable[[], T], seconds: float) -> T:
    """What `work` returns or raises. It runs in a thread of its own, for a socket's timeout starts again with each byte.

    Raises:
        TimeoutError: it did not end in time. Nobody waits for it any more.
    """
    try:
        return _result(_begun(work, "within").get(timeout=seconds))
    except queue.Empty:
        raise TimeoutError from None


def apart(work: Callable[P, T]) -> Callable[P, T]:
    """`work`, called in a thread of its own where the caller is the main one.

    An interrupt ends the wait for a call to Spark, not the call: its connection would give the answer of that call to the next one. And Spark,
    if it begins in the main thread, sets a handler of its own.
    """

    @wraps(work)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        if threading.current_thread() is not threading.main_thread():
            return work(*args, **kwargs)
        with interrupts() as signals:
            answers = _begun(partial(work, *args, **kwargs), "apart")
            while True:
                signals.look()
                try:
                    answer = answers.get(timeout=_GLANCE)
                except queue.Empty:
                    continue
                return _result(answer)

    return called


def _begun(work: Callable[[], T], name: str) -> queue.SimpleQueue[_Answer[T]]:
    """Where the answer of `work` will be; a daemon, for what hangs must not keep an interrupted process alive."""
    answers: queue.SimpleQueue[_Answer[T]] = queue.SimpleQueue()

    def answer() -> None:
        try:
            answers.put(([work()], None))
        except BaseException as error:
            answers.put(([], error))

    threading.Thread(target=contextvars.copy_context().run, args=(answer,), daemon=True, name=name).start()
    return answers


def _result(answer: _Answer[T]) -> T:
    found, error = answer
    if error is not None:
        raise error
    return found[0]
