"""One HTML file: everything inside, nothing loaded, every value escaped."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from dbt_reverse_etl.base.times import minute
from dbt_reverse_etl.delivery.health import Health, when
from dbt_reverse_etl.report.model import Report, Sync, worst_first

_HERE = Path(__file__).parent


def render(report: Report) -> str:
    """The page as text, to be written in UTF-8."""
    syncs = worst_first(report.syncs)
    counted = Counter(sync.health for sync in syncs)
    template = _environment().get_template("page.html")
    return template.render(
        report=replace(report, syncs=syncs),
        verdict=_verdict(syncs),
        worst=syncs[0].health if syncs else Health.NEVER,
        health=[(word, counted[word]) for word in reversed(Health) if counted[word]],
        undelivered=sum(sync.undelivered for sync in syncs),
        unsynced=[one for one in report.changelogs if one.name not in {sync.changelog for sync in syncs}],
        **_inlined(),
    )


def _verdict(syncs: Sequence[Sync]) -> str:
    """What a reader takes away in five seconds."""
    ill = sum(not sync.health.is_well for sync in syncs)
    if not syncs:
        return "No sync yet"
    if not ill:
        return "All is well"
    return f"{ill} of {len(syncs)} sync{'s' if len(syncs) != 1 else ''} need{'s' if ill == 1 else ''} attention"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(
        number="{:,}".format, moment=minute, ago=_ago, duration=_duration, image=_image, when=when
    )
    return environment


@cache
def _inlined() -> dict[str, Markup | str]:
    """Style and scripts, and the policy that lets the browser run exactly these and load nothing."""
    style, script = _text("page.css"), _text("page.js")
    library = _text("vendor/chart.umd.min.js")
    policy = (
        f"default-src 'none'; img-src data:; style-src {_hash(style)}; "
        f"script-src {_hash(library)} {_hash(script)}; base-uri 'none'; form-action 'none'"
    )
    # Our own files, not data: a test looks for closing tags in them.
    texts = {"style": style, "script": script, "library": library}
    return {"policy": policy, **{name: Markup(text) for name, text in texts.items()}}  # noqa: S704


def _text(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _image(svg: str) -> str:
    """An SVG as the address of an image: there the browser runs no script of it and loads nothing for it."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


def _ago(value: datetime, now: datetime) -> str:
    """`2 h 5 min`: at most two units, the largest first."""
    return _duration((now - value) / timedelta(seconds=1))


def _duration(seconds: float) -> str:
    seconds = max(0.0, seconds)  # a clock may have been set back meanwhile
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    if hours < 1:
        return f"{minutes} min"
    return f"{hours} h {minutes % 60} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"
