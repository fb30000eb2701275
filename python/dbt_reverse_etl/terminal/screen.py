"""Where lines go, and what stands below them while pushes are under way: bars on a terminal, a line at times elsewhere.

The thread that waits for the pushes writes, and at the start those that try the destinations: a lock keeps them apart on one terminal.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any

from dbt_reverse_etl.delivery.clock import Clock
from dbt_reverse_etl.terminal import under_way
from dbt_reverse_etl.terminal.progress import Board, Look

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dbt_reverse_etl.app.push_report import Report

EVERY = 10.0  # seconds between two lines about a push where there is no terminal
_BARS_AFTER = 0.5  # seconds: a push that ends at once shows no bar
Write = Callable[[str, str, Mapping[str, Any]], None]  # text; level: debug, info, warn, error; what the line is about


class Screen:
    """Lines only: about a push that takes long, one every ten seconds. `verbose`: also a line for each wave, repeated request and pause, of level debug."""

    def __init__(self, write: Write, *, verbose: bool = False, clock: Clock | None = None) -> None:
        self._write, self._verbose = write, verbose
        self._clock = clock or Clock()
        self.board = Board(self._clock)
        self._told: dict[str, float] = {}  # run id -> when its last line was written

    def say(self, text: str, level: str, **about: Any) -> None:
        """A line; `about` is for machines. One that nobody reads any more ends no push."""
        ids = self.board.ids(about["sync"]) if "sync" in about else {}
        with suppress(OSError):
            self._write(text, level, {**ids, **about})

    def tell(self, report: Report, number: int, total: int) -> None:
        """The line of one report, and below it what went wrong."""
        from dbt_reverse_etl.terminal import console

        self.say(console.line(number, total, report), console.level(report), **console.about(report))
        for text in console.details(report):
            self.say(f"  {text}", console.level(report), sync=report.sync)

    def glance(self) -> None:
        """Draw what has changed. A terminal that is gone, or knows no such letter, must not end a push."""
        with suppress(OSError, UnicodeError):
            for note in self.board.take_notes() if self._verbose else ():
                self.say(under_way.step(note), "debug", **note.look.ids)
            self._draw()

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def _draw(self) -> None:
        now = self._clock.monotonic()
        for look in self.board.looks(after=EVERY):
            if now - self._told.get(look.bound.run_id, -EVERY) >= EVERY:
                self._told[look.bound.run_id] = now
                self.say(under_way.line(look), "info", **look.ids, **under_way.figures(look))


class Bars(Screen):
    """Bars on a terminal, one for each push; lines scroll above them."""

    def __init__(self, write: Write, to: IO[str], *, colours: bool = True, verbose: bool = False) -> None:
        from rich.console import Console

        super().__init__(write, verbose=verbose)
        self._console = Console(file=to, force_terminal=True, no_color=not colours, highlight=False)
        self._live: Any = None
        self._lock = threading.RLock()

    def say(self, text: str, level: str, **about: Any) -> None:
        """A line, for which the bars make way."""
        with self._lock:
            with suppress(OSError):
                self._clear()
            super().say(text, level, **about)

    def glance(self) -> None:
        """As of `Screen`."""
        with self._lock:
            super().glance()

    def __exit__(self, *_: object) -> None:
        with self._lock, suppress(OSError):
            self._clear()

    def _draw(self) -> None:
        from rich.live import Live

        looks = self.board.looks(after=_BARS_AFTER)
        if not looks:
            self._clear()
        elif self._live is None:
            self._live = Live(
                _picture(looks, self._console.width),
                console=self._console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
            )
            self._live.start(refresh=True)
        else:
            self._live.update(_picture(looks, self._console.width), refresh=True)

    def _clear(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def _picture(looks: list[Look], width: int) -> RenderableType:
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 1))
    names = min(max(len(look.bound.sync) for look in looks), width // 4)
    bars = max(5, width // 6)
    for column in (names, bars, width - names - bars - 2):
        grid.add_column(no_wrap=True, overflow="ellipsis", width=max(1, column))
    for look in looks:
        bar = ProgressBar(total=look.planned or None, completed=look.done, pulse=look.planned is None)
        grid.add_row(Text(look.bound.sync), bar, Text(", ".join(under_way.parts(look))))
    return grid


def on_terminal(stream: IO[str] | None, env: Mapping[str, str]) -> bool:
    """Whether bars can be drawn there; None: the stream is closed."""
    return stream is not None and stream.isatty() and env.get("TERM") != "dumb"


def colours(env: Mapping[str, str]) -> bool:
    """See https://no-color.org."""
    return not env.get("NO_COLOR")
