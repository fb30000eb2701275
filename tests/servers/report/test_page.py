"""The page: whatever the values are, it stays the same page; it loads nothing, and a browser draws what its tables say."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from dbt_reverse_etl.delivery.health import Health
from dbt_reverse_etl.report.model import Delivery, KeyChange, KeyHistory, Report, worst_first
from dbt_reverse_etl.report.page import render
from tests.support.report.data import NOW, forty, none, one, report
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
OURS = ("succeeded", "partial", "failed", "next_run", "at_a_time", "on_change")
WIDTHS = {"a desktop": 1280, "a phone": 390}
PAPER = {"Letter, inch margins": 624, "A4, half-inch margins": 698, "A4 upright": 718, "A4 on its side": 1046}
PRINT = "dispatchEvent(new Event('beforeprint'))"


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
        return value if isinstance(value, Health) or value in OURS else poison
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
    assert page.locator("#syncs tbody th a").first.inner_text().split() == poison.split()


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


OPEN_ALL = "document.querySelectorAll('details').forEach(one => { one.open = true; })"
# What holds more than it shows, text that a column has cut, and what lies outside of the window.
CUT = """
[...document.querySelectorAll('main *')].filter(e => {
  const box = e.getBoundingClientRect(), overflow = getComputedStyle(e).overflowX;
  const hidden = overflow !== 'visible' && e.scrollWidth > e.clientWidth + 1;
  return box.width && (hidden || box.right > innerWidth + 1 || box.left < 0);
}).map(e => e.tagName + '.' + e.className + ' ' + e.textContent.trim().slice(0, 40))
"""


@pytest.mark.guarantee("Report and alerts")
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
@pytest.mark.parametrize("made", [none, one, report, forty])
def test_nothing_is_cut_on_a_desktop_and_no_page_scrolls_sideways_however_many_syncs_there_are(
    opened: Any, made: Callable[[], Report], width: int
) -> None:
    page = opened(render(made()), width)
    page.evaluate(OPEN_ALL)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    if width == WIDTHS["a desktop"]:
        assert page.evaluate(CUT) == []


@pytest.mark.guarantee("Report and alerts")
@pytest.mark.parametrize(
    ("made", "verdict", "first"),
    [
        (none, "No sync yet", None),
        (one, "All is well", "crm_contacts"),
        (report, "4 of 6 syncs need attention", "crm_orders"),
        (forty, "4 of 40 syncs need attention", "crm_orders_of_region_05"),
    ],
)
def test_the_first_words_say_whether_all_is_well_and_the_worst_sync_comes_first_with_its_reason(
    opened: Any, made: Callable[[], Report], verdict: str, first: str | None
) -> None:
    page = opened(render(made()))
    assert page.locator("#verdict").inner_text() == verdict
    assert page.title().startswith(verdict)
    healths = page.locator("#syncs tbody .badge").all_inner_texts()
    assert healths == [sync.health.value for sync in worst_first(made().syncs)]
    if first is None:
        assert "contacts_changelog, orders_changelog are captured and go nowhere yet" in page.content()
        assert page.locator("#changelogs details").count() == 2
        assert page.locator("nav").count() == 0
        return
    row = page.locator("#syncs tbody tr").first
    assert row.locator("th a").inner_text() == first
    assert row.bounding_box()["y"] < 400, "seen without scrolling"


@pytest.mark.guarantee("Report and alerts")
def test_reasons_stand_beside_partial_and_rows_that_wait_or_were_not_reached_count_as_undelivered(opened: Any) -> None:
    page = opened(render(report()))
    partial = page.locator("#sync-ads_audience")
    assert "38 rejected: 422 invalid_email; tried again from 2026-03-14 09:35" in partial.inner_text()
    assert "3 parked: 422 unknown_country" in partial.inner_text()
    assert partial.locator("[data-name=Undelivered]").inner_text() == "41"
    assert page.locator("#sync-crm_orders [data-name=Undelivered]").inner_text() == "812"
    assert "853 undelivered rows" in page.locator(".verdict").inner_text()
    page.locator("#sync-ads_audience a").first.click()
    newest = page.locator("details:target tbody tr").first
    newest.wait_for(state="visible", timeout=5000)  # the link opens the panel
    assert (
        newest.locator("td").nth(1).inner_text()
        == "partial 38 rejected: 422 invalid_email; 3 parked: 422 unknown_country"
    )
    assert page.locator("#undelivered tbody tr").count() == 3


@pytest.mark.guarantee("Report and alerts")
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_every_chart_is_drawn_with_the_numbers_of_its_table_once_its_panel_is_open(opened: Any, width: int) -> None:
    made = report()
    page = opened(render(made), width)
    shown = "[...document.querySelectorAll('canvas')].filter(c => Chart.getChart(c)).length"
    assert page.evaluate(shown) == 2 * 2, "of six syncs no panel is open"
    page.evaluate(OPEN_ALL)
    page.wait_for_function(f"{shown} === {5 + 2 * 2}")
    charts = page.evaluate(
        "[...document.querySelectorAll('canvas')].map(c => { const chart = Chart.getChart(c);"
        " return [c.ariaLabel, chart.width, chart.data.datasets.map(d => [d.label, d.data])]; })"
    )
    assert all(drawn > 250 for _, drawn, _ in charts)
    found = {label.partition(" runs of ")[2].partition(" by ")[0] or label: dict(sets) for label, _, sets in charts}
    runs = {sync.name: sync.runs for sync in made.syncs}
    inserts = [run.counts.delivered.insert for run in runs["crm_contacts"]]
    assert found["crm_contacts"]["inserts"] == inserts[1:], "without the first load"
    refused = found["ads_audience"]
    assert refused["rejected"][-1] == 41
    assert "failed" not in refused, "a row of zeros needs no colour"
    assert dict(charts[-1][2])["rows"] == [one.live_rows for one in made.changelogs[1].snapshots]


@pytest.mark.guarantee("Report and alerts")
def test_it_follows_the_dark_mode_of_the_reader_also_while_it_is_open(opened: Any) -> None:
    page = opened(render(one()), scheme="dark")
    colours = "[getComputedStyle(document.body).backgroundColor, Chart.getChart(document.querySelector('canvas')).data.datasets[0].backgroundColor]"
    dark = page.evaluate(colours)
    page.emulate_media(color_scheme="light")
    page.wait_for_function(f"([ground, bar]) => (now => now[0] !== ground && now[1] !== bar)({colours})", arg=dark)


@pytest.mark.guarantee("Report and alerts")
def test_the_keyboard_alone_finds_a_key_and_gets_everything_back(opened: Any) -> None:
    page = opened(render(report()))
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") != "find", (
        "a letter alone is no shortcut: speech input types letters"
    )
    while page.evaluate("document.activeElement.id") != "find":
        page.keyboard.press("Tab")
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


def test_a_printed_page_shows_every_panel_and_the_screen_none_more(opened: Any) -> None:
    made = report()
    page = opened(render(replace(made, syncs=[replace(made.syncs[0], name=f"sync_{n}") for n in range(5)])))
    closed = page.locator("details:not([open])").count()
    assert closed > 0
    page.evaluate(PRINT)
    assert page.locator("details:not([open])").count() == 0
    assert page.evaluate("[...document.querySelectorAll('canvas')].every(one => Chart.getChart(one).width > 0)")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details:not([open])").count() == closed


@pytest.mark.guarantee("Report and alerts")
@pytest.mark.parametrize("width", PAPER.values(), ids=PAPER)
@pytest.mark.parametrize("made", [report, forty])
def test_a_printed_page_cuts_no_column_and_no_chart(opened: Any, made: Callable[[], Report], width: int) -> None:
    page = opened(render(made()))
    page.evaluate(PRINT)  # before the browser lays the page out for paper
    page.emulate_media(media="print")
    page.set_viewport_size({"width": width, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate(CUT) == []
    assert page.locator(".cards thead").first.evaluate("e => getComputedStyle(e).position") == "static", (
        "no cards of a phone"
    )
    wider = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth).map(e => e.ariaLabel)"
    assert page.evaluate(wider) == [], "overlaps the border of its panel"
    assert page.locator("search, nav, .skip").evaluate_all("all => all.every(one => !one.checkVisibility())")


@pytest.mark.guarantee("Report and alerts")
def test_from_dark_mode_a_page_is_printed_in_the_colours_of_light_mode_and_is_dark_again_after_it(opened: Any) -> None:
    colours = (
        "[...document.querySelectorAll('canvas')].map(one => Chart.getChart(one)).map(chart =>"
        " [chart.options.plugins.legend.labels.color, chart.options.scales.y.grid.color, chart.data.datasets[0].backgroundColor])"
        ".concat([[getComputedStyle(document.body).color]])"
    )
    light = opened(render(one())).evaluate(colours)
    page = opened(render(one()), scheme="dark")
    dark = page.evaluate(colours)
    page.evaluate(PRINT)
    assert page.evaluate(colours) == light != dark
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate(colours) == dark
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).color") == light[-1][0], "also without a script"


@pytest.mark.guarantee("Report and alerts")
@pytest.mark.parametrize("how", ["mouse", "keyboard"])
def test_a_link_to_a_panel_opens_it_each_time(opened: Any, how: str) -> None:
    page = opened(render(report()))
    link = page.locator("#syncs tbody th a").first
    panel = page.locator("#runs-1")
    for _ in range(2):
        assert not panel.evaluate("panel => panel.open")
        link.click() if how == "mouse" else link.press("Enter")
        page.wait_for_function("document.getElementById('runs-1').open", timeout=5000)
        panel.locator("summary").click()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_border_of_the_search_field_has_the_contrast_of_wcag(opened: Any, scheme: str) -> None:
    page = opened(render(report()), scheme=scheme)
    colours = page.evaluate(
        "(({borderTopColor, backgroundColor}) => [borderTopColor, backgroundColor])(getComputedStyle(document.getElementById('find')))"
    )

    def luminance(colour: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted(map(luminance, colours))
    assert (high + 0.05) / (low + 0.05) >= 3


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


def test_a_project_without_a_changelog_is_told_what_to_write() -> None:
    page = render(report(syncs=(), changelogs=(), keys=(), pictures={}))
    assert "No sync yet" in page
    assert "The project has no changelog either" in page
    assert not [name for name in ("runs", "undelivered", "lineage", "changelogs", "keys") if f'id="{name}"' in page]


def test_each_sync_shows_its_health_and_rows_without_a_match_are_no_undelivered_ones() -> None:
    made = report()
    for health in Health:
        page = render(replace(made, syncs=[replace(made.syncs[0], health=health, no_match=7)]))
        assert f'<span class="badge" data-health="{health.value}">{health.value}</span>' in page
        assert f'<li data-health="{health.value}"><strong>1</strong> {health.value}</li>' in page
        assert "<strong>0</strong> undelivered rows" in page
        assert "7 rows without a match at the destination" in page
        assert ("every row that was planned is delivered" in page) == health.is_well, "no more than what is known"


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
    left = replace(history, syncs=("crm",), changes=(KeyChange(7, NOW, "update"),))
    for outcome, badge in (("no_match", "no match"), ("rejected", "undelivered")):
        page = render(report(keys=(replace(left, deliveries=(Delivery("crm", 9, NOW, 7, "no row", outcome),)),)))
        assert f'>{badge}</span> <span class="quiet">run 9: no row' in page, outcome
    without = replace(history, deliveries=history.deliveries[:-1])
    assert without.reached("crm", 2) == tried(3, 3, "new")
    assert without.reached("other", 1) is None
