"""`dbt-reverse-etl serve` and `dbt-reverse-etl poll`: the parts put together, threads, signals and the end of the process."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dbt_reverse_etl.base.errors import ExitCode, Problem, ReverseEtlError, SyncBusy, mistake
from dbt_reverse_etl.base.locks import no_locks

if wrong := no_locks():
    raise mistake("serve and poll", *wrong)

try:
    import fcntl

    import uvicorn

    from dbt_reverse_etl.app.project import refuse_switched_off
    from dbt_reverse_etl.serve.connections import Connection
    from dbt_reverse_etl.serve.settings import ServeSettings, load_settings
    from dbt_reverse_etl.serve.surroundings import Surroundings
    from dbt_reverse_etl.serve.webhooks import Receiver
    from dbt_reverse_etl.serve.worker import Worker
except ModuleNotFoundError as error:
    found = f"no package {error.name}"
    raise mistake("serve and poll", found, "it installed", "pip install 'dbt-reverse-etl[serve]'") from error

_GLANCE = 0.2  # seconds between two looks at a signal


def serve(around: Surroundings, listen: str | None = None) -> int:
    """Receive webhooks until SIGTERM or SIGINT. The API is asked, too, in case a webhook is lost.

    Raises:
        ConfigurationError: with every problem.
        ReverseEtlError: the address is taken, or another process works in the folder.
    """
    refuse_switched_off(around.env)  # each push would inherit it, and succeed without having sent anything
    settings = load_settings(around.profiles, around.env, webhook=True, listen=listen)
    with _opened(settings, around) as worker, listening(settings) as listener:
        thread = threading.Thread(target=worker.run, daemon=True)
        server = uvicorn.Server(_server_config(Receiver(settings, worker, thread.is_alive, around)))
        with _on_signal(lambda: setattr(server, "should_exit", True)):
            thread.start()
            host, port = listener.getsockname()[:2]
            around.say(f"listening on http://{host}:{port}/webhook", "info")
            server.run(sockets=[listener])
            _end(thread, worker, around)
    return ExitCode.OK


def poll(around: Surroundings, *, once: bool) -> int:
    """Ask the API until SIGTERM or SIGINT, or once.

    Returns:
        0; with `once` the worst exit code of what was pushed, or 1 if the API did not answer, or something is to be tried again, failed or was given up.

    Raises:
        ConfigurationError: with every problem.
        ReverseEtlError: another process works in the folder.
    """
    refuse_switched_off(around.env)
    settings = load_settings(around.profiles, around.env, webhook=False)
    with _opened(settings, around) as worker, _on_signal(worker.stop):
        # In a thread of its own: a signal sets events, and must not find the main thread inside one of them.
        thread = threading.Thread(target=worker.turn if once else worker.run, daemon=True)
        thread.start()
        while thread.is_alive() and not worker.stopping.is_set():
            thread.join(_GLANCE)
        if worker.stopping.is_set():
            _end(thread, worker, around)
            return ExitCode.INTERRUPTED if once else ExitCode.OK
    return worker.worst


def _end(thread: threading.Thread, worker: Worker, around: Surroundings) -> None:
    """End a running push and wait for it; whatever else is under way, the next start repeats."""
    around.say("stopping", "info")
    worker.stop()
    while thread.is_alive() and worker.process.is_running:
        thread.join(_GLANCE)
    thread.join(1)


@contextmanager
def _opened(settings: ServeSettings, around: Surroundings) -> Iterator[Worker]:
    """The worker, while no other process works in its folder, which nobody else may read.

    Raises:
        ReverseEtlError: another one does, or the folder cannot be written.
    """
    umask = os.umask(0o077)
    try:
        with _alone(around.project_dir / settings.folder) as folder:
            yield Worker(settings, around, folder, umask)
    finally:
        os.umask(umask)


@contextmanager
def _alone(folder: Path) -> Iterator[Path]:
    """The system drops the lock when the process is gone, however it went."""
    try:
        for each in (folder, folder / "runs", folder / "reports"):
            each.mkdir(parents=True, exist_ok=True)
            with suppress(PermissionError):  # a volume that belongs to somebody else
                each.chmod(0o700)
        lock = (folder / "serve.lock").open("a")
    except OSError as error:
        found, expected = f"a folder that cannot be written ({type(error).__name__})", "one that this user may write"
        raise ReverseEtlError(Problem(str(folder), found, expected, "give it to this user, or set `folder`")) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            found, expected = "another `serve` or `poll` that works in it", "one for each folder"
            raise SyncBusy(Problem(str(folder), found, expected, "stop it, or set another `folder`")) from None
        yield folder


def _server_config(receiver: Receiver) -> uvicorn.Config:
    return uvicorn.Config(
        receiver.app(),
        http=Connection,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",  # the log is ours: a client can fill it with nothing, and no traceback shows a value
        access_log=False,
        server_header=False,
        headers=[("Connection", "close")],
        timeout_graceful_shutdown=5,
    )


def listening(settings: ServeSettings) -> socket.socket:
    host, port = settings.address
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        reason = str(error.strerror).partition(" (while")[0]  # Python adds the address
        found, expected = f"{settings.listen}, which cannot be bound: {reason}", "a free address of this machine"
        raise ReverseEtlError(Problem("listen", found, expected, "change `listen`, or stop who has it")) from None


@contextmanager
def _on_signal(stop: Callable[[], None]) -> Iterator[None]:
    before = {number: signal.signal(number, lambda *_: stop()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
