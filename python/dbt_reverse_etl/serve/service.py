"""`dbt-reverse-etl serve` and `dbt-reverse-etl poll`: threads, signals and the end of the process."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dbt_reverse_etl.base.errors import ConfigurationError, ExitCode, Problem, ReverseEtlError

try:
    import uvicorn

    from dbt_reverse_etl.serve.parts import Parts, Surroundings, opened
    from dbt_reverse_etl.serve.pushing import STOP_GRACE
    from dbt_reverse_etl.serve.settings import ServeSettings
    from dbt_reverse_etl.serve.webhooks import Receiver
except ModuleNotFoundError as error:
    found = f"no package {error.name}"
    raise ConfigurationError(
        Problem("serve and poll", found, "it installed", "pip install 'dbt-reverse-etl[serve]'")
    ) from error

__all__ = ["Surroundings", "poll", "serve"]

INTERRUPTED = 130
_CONNECTIONS = 64


def serve(around: Surroundings) -> int:
    """Receive webhooks until SIGTERM or SIGINT. The API is asked, too, for what a lost webhook would have told.

    Raises:
        ConfigurationError: with every problem.
        ReverseEtlError: the address is taken, or another process works on the queue.
    """
    settings = around.settings(webhook=True)
    with _listening(settings) as listener, opened(settings, around) as parts:
        worker = threading.Thread(target=parts.worker.run, daemon=True)
        poller = threading.Thread(target=_keep_polling, args=(parts, settings), daemon=True)
        server = uvicorn.Server(_server_config(_receiver(settings, parts, around, worker)))
        with _on_signal(lambda: setattr(server, "should_exit", True)):
            worker.start()
            poller.start()
            host, port = listener.getsockname()[:2]
            around.say(f"listening on http://{host}:{port}/webhook", "info")
            server.run(sockets=[listener])
            around.say("stopping", "info")
            parts.stop()
            worker.join(STOP_GRACE + 5)
    return ExitCode.OK


def poll(around: Surroundings, *, once: bool) -> int:
    """Ask the API until SIGTERM or SIGINT, or once.

    Returns:
        0; with `once` the worst exit code of what was pushed, or 1 if the API did not answer or something is to be tried again.

    Raises:
        ConfigurationError: with every problem.
        ReverseEtlError: another process works on the queue.
    """
    settings = around.settings(webhook=False)
    with opened(settings, around) as parts, _on_signal(parts.stop):
        if once:
            unanswered = parts.poller.look() is not None
            parts.worker.drain()
            if parts.stopping.is_set():
                return INTERRUPTED
            return max(parts.worker.worst, ExitCode.FAILED if unanswered else ExitCode.OK)
        worker = threading.Thread(target=parts.worker.run, daemon=True)
        worker.start()
        _keep_polling(parts, settings)
        around.say("stopping", "info")
        worker.join(STOP_GRACE + 5)
    return ExitCode.OK


def _keep_polling(parts: Parts, settings: ServeSettings) -> None:
    parts.poller.run(settings.poll_interval, parts.stopping, parts.worker.wake.set)


def _receiver(settings: ServeSettings, parts: Parts, around: Surroundings, worker: threading.Thread) -> Receiver:
    return Receiver(
        settings=settings,
        secret=settings.webhook_secret.get_secret_value() if settings.webhook_secret else "",
        queue=parts.queue,
        metrics=parts.metrics,
        reports=parts.reports,
        say=around.say,
        wake=parts.worker.wake.set,
        is_alive=worker.is_alive,
        step=around.step,
    )


def _server_config(receiver: Receiver) -> uvicorn.Config:
    return uvicorn.Config(
        receiver.app(),
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=_CONNECTIONS,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=5,
    )


def _listening(settings: ServeSettings) -> socket.socket:
    host, port = settings.address
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        found = f"{settings.listen}, which cannot be bound ({type(error).__name__})"
        expected = "a free address of this machine"
        raise ReverseEtlError(Problem("listen", found, expected, "stop who has it, or change `listen`")) from None


@contextmanager
def _on_signal(stop: Callable[[], None]) -> Iterator[None]:
    before = {number: signal.signal(number, lambda *_: stop()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
