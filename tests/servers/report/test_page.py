"""The page: whatever the values are, it stays the same page; it loads nothing, and a browser draws what its tables say."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from dbt_reverse_etl.delivery.health import Health
from dbt_reverse_etl.report.model import Delivery, KeyHistory, Report
from dbt_reverse_etl.report.page import render
from tests.support.report.data import NOW, report
from tests.support.servers.browser import headless

HOSTILE = (
    "</script><script>window.broken = 1</script>",
    '"><img src=x onerror="window.broken = 1">',
    "' onmouseover='window.broken = 1",
    "</style><style>*{display:none}</style>",
    "{{ 7 * 191 }}{% raw %}",
    "<!-- <title>&lt;",
    "javascript:window.broken=1//\u2028",
)
WIDTHS = {"a desktop": 1280, "a phone": 390}


class Outline(HTMLParser):
    """The tags of a page with the names of their attributes, its inline texts and its addresses."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.inline: dict[str, list[str]] = {"script": [], "style": []}
        self.addresses: list[str] = []
        self.policy = ""
        self._inside = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append((tag, tuple(given)))
        self.addresses += [str(given[name]) for name in ("href", "src", "srcset", "action", "data") if name in given]
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = str(given["content"])
        self._inside = tag if tag in self.inline else ""

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.inline[self._inside].append(data)


def poisoned(value: Any, poison: str) -> Any:
    """The same data with every text replaced, those words left out that are ours."""
    if isinstance(value, str):
        return value if isinstance(value, Health) or value in ("succeeded", "partial", "failed") else poison
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{one.name: poisoned(getattr(value, one.name), poison) for one in fields(value)})
    if isinstance(value, tuple | list):
        return tuple(poisoned(one, poison) for one in value)
    if isinstance(value, dict):
        return {poisoned(key, poison): poisoned(one, poison) for key, one in value.items()}
    return value


def dull(made: Report) -> Report:
    return poisoned(made, "x")  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with headless() as found:
        yield found


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Any]:
    """Opens a page in a window, and fails if it loads anything or complains."""
    complaints: list[str] = []
    contexts = []

    def open_page(text: str, width: int = 1280, scheme: str = "light") -> Page:
        file = tmp_path / "report.html"
        file.write_text(text, encoding="utf-8")
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme))  # type: ignore[arg-type]
        page = contexts[-1].new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda one: complaints.append(one.url) if one.url.startswith(("http", "ws")) else None)
        page.goto(file.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.mark.guarantee("Report and alerts")
@pytest.mark.parametrize("poison", HOSTILE)
def test_no_value_breaks_out_of_the_page(poison: str) -> None:
    made = replace(report(), shows_values=True)
    page = Outline(render(poisoned(made, poison)))
    assert page.tags == Outline(render(dull(made))).tags
    assert page.inline == Outline(render(report())).inline


@pytest.mark.guarantee("Report and alerts")
def test_in_a_browser_no_value_runs_or_loads_anything(opened: Any) -> None:
    poison = " ".join(HOSTILE)
    page = opened(render(poisoned(report(), poison)))
    assert page.evaluate("window.broken") is None
    assert page.locator("main").is_visible()
    assert page.locator("#syncs tbody th").first.inner_text().split() == poison.split()


@pytest.mark.guarantee("Report and alerts")
def test_the_policy_allows_the_texts_of_the_page_alone() -> None:
    page = Outline(render(report()))
    directives = dict(part.strip().split(" ", 1) for part in page.policy.split(";"))
    assert directives["default-src"] == "'none'"
    assert directives["img-src"] == "data:"
    for tag in ("script", "style"):
        hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in page.inline[tag]]
        assert directives[f"{tag}-src"] == " ".join(f"'sha256-{one}'" for one in hashes)
    assert not [one for one in page.addresses if not one.startswith(("#", "data:image/svg+xml;base64,"))]
    assert not [names for _, names in page.tags if any(name == "style" or name.startswith("on") for name in names)]


def test_the_files_of_the_page_hold_no_closing_tag_and_name_their_licence() -> None:
    folder = Path(render.__code__.co_filename).parent
    for name in ("page.css", "page.js", "vendor/chart.umd.min.js"):
        assert not re.search(r"</(script|style)|<!--", (folder / name).read_text(encoding="utf-8"), re.IGNORECASE)
    assert "MIT License" in (folder / "vendor/chart.LICENSE.md").read_text(encoding="utf-8")
    assert "Chart.js v4" in render(report())


@pytest.mark.guarantee("Report and alerts")
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_every_chart_is_drawn_with_the_numbers_of_its_table_and_the_page_never_scrolls_sideways(
    opened: Any, width: int
) -> None:
    page = opened(render(report()), width)
    charts = page.evaluate(
        "[...document.querySelectorAll('canvas')].map(c => { const chart = Chart.getChart(c);"
        " return [c.dataset.table, chart.width, chart.data.datasets.map(d => [d.label, d.data])]; })"
    )
    assert len(charts) == 4 + 1 + 2 * 2
    assert all(drawn > 250 for _, drawn, _ in charts)
    _, _, [(name, inserts), *_] = charts[0]
    assert name == "inserts"
    assert inserts == [run.counts.delivered.insert for run in report().syncs[0].runs][1:], "without the first load"
    refused = dict(charts[1][2])
    assert refused["rejected"][-1] == 41
    assert "failed" not in refused, "a row of zeros needs no colour"
    assert dict(charts[-1][2])["rows"] == [one.live_rows for one in report().changelogs[1].snapshots]
    assert page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.guarantee("Report and alerts")
def test_it_follows_the_dark_mode_of_the_reader_also_while_it_is_open(opened: Any) -> None:
    page = opened(render(report()), scheme="dark")
    colours = "[getComputedStyle(document.body).backgroundColor, Chart.getChart(document.querySelector('canvas')).data.datasets[0].backgroundColor]"
    dark = page.evaluate(colours)
    page.emulate_media(color_scheme="light")
    page.wait_for_function(f"([ground, bar]) => (now => now[0] !== ground && now[1] !== bar)({colours})", arg=dark)


@pytest.mark.guarantee("Report and alerts")
def test_the_keyboard_alone_finds_a_key_and_gets_everything_back(opened: Any) -> None:
    page = opened(render(report()))
    page.keyboard.press("/")
    page.keyboard.type('{"contact_id":1}')
    assert page.locator("#keys article").is_visible()
    assert not page.locator("#runs-1").is_visible()
    assert not page.locator("#lineage h2").is_visible()
    assert page.locator("#found").inner_text().startswith("1 of ")
    page.keyboard.press("Control+a")
    page.keyboard.type("nowhere")
    assert page.locator("#nothing").is_visible()
    page.keyboard.press("Control+a")
    page.keyboard.press("Delete")
    assert page.locator("#runs-1").is_visible()
    assert not page.locator("#nothing").is_visible()
    unreachable = page.evaluate(
        "[...document.querySelectorAll('.scroll')].filter(e => e.tabIndex !== 0 || !e.ariaLabel).length"
    )
    assert unreachable == 0, "what scrolls can be reached by keyboard and has a name"


@pytest.mark.guarantee("Report and alerts")
def test_a_picture_is_shown_and_its_scripts_never_run(opened: Any) -> None:
    svg = '<svg xmlns="http://www.w3.org/2000/svg" width="90" height="40" onload="top.broken=1"><script>top.broken=1</script></svg>'
    page = opened(render(report(pictures={"contacts": svg})))
    picture = page.get_by_alt_text("Join tree of contacts")
    assert picture.evaluate("image => [image.complete, image.naturalWidth]") == [True, 90]
    assert page.evaluate("window.broken") is None


def test_each_sync_has_an_anchor_so_that_its_exposure_can_link_to_it() -> None:
    made = report()
    page = render(made)
    assert made.syncs
    for sync in made.syncs:
        assert f'<tr id="sync-{sync.name}"' in page


def test_an_empty_report_says_so() -> None:
    page = render(report(syncs=(), changelogs=(), keys=(), pictures={}))
    assert "No sync was chosen." in page
    assert "None: every planned row was delivered." in page
    assert 'id="keys"' not in page


def test_each_sync_shows_its_health_and_rows_without_a_match_are_no_undelivered_ones() -> None:
    made = report()
    for health in Health:
        page = render(replace(made, syncs=[replace(made.syncs[0], health=health, no_match=7)]))
        assert f'<span class="badge" data-health="{health.value}">{health.value}</span>' in page
        assert f'<li data-health="{health.value}"><strong>1</strong> {health.value}</li>' in page
        assert "<strong>0</strong> undelivered rows" in page
        assert "7 rows have no match at the destination" in page


def test_a_change_was_delivered_by_the_first_run_that_reached_it_or_waits_for_the_reason_of_the_last() -> None:
    def tried(run: int, snapshot: int, reason: str | None = None) -> Delivery:
        return Delivery("crm", run, NOW + timedelta(hours=run), snapshot, reason)

    history = KeyHistory("c", "{}", ("crm",), (), (tried(1, 1), tried(2, 3, "old"), tried(3, 3, "new"), tried(4, 5)))
    assert [history.reached("crm", snapshot) for snapshot in (1, 2, 5, 6)] == [
        tried(1, 1),
        tried(4, 5),
        tried(4, 5),
        None,
    ]
    without = replace(history, deliveries=history.deliveries[:-1])
    assert without.reached("crm", 2) == tried(3, 3, "new")
    assert without.reached("other", 1) is None
