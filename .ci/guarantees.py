"""`make docs`: docs/guarantees.md, from the tests that are marked `@pytest.mark.guarantee(section)`: the name of a test is its sentence."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "guarantees.md"
CONTRACT = "python/dbt_reverse_etl/testing/contract.py"
# In the order of the page, with what each is about.
SECTIONS = {
    "Capture": "each change of a model is captured once, and nothing else",
    "What is sent": "exactly the net changes, through the filter and mapping of now",
    "Crashes and claims": "after any crash, the next run makes the destination equal",
    "Leases and rivals": "of two runs one wins; one that slept undoes nothing",
    "Refusals and outages": "a refused row holds back no other; an outage rejects none",
    "Guards": "too many deletes or changes, or a failed test, stop a push before its first request",
    "Every destination": "the contract that each type of destination passes",
    "SQL databases": "rows and their record are one transaction, under a fence: Postgres, MySQL and MariaDB, SQLite, DuckDB",
    "Postgres": "nobody else's functions run with our rights; nothing of the environment is read",
    "MySQL and MariaDB": "upserts that touch no row of another key; no default of the server matters",
    "SQLite": "every value without loss; locks, disks and triggers",
    "Files": "each part is listed once, whole",
    "Kafka": "no message is lost, in order by key",
    "HTTP": "no answer counts as delivered unless it says so",
    "Singer": "a batch counts once its own STATE came back",
    "Values in JSON": "every value reads back as it was",
    "Secrets and row values": "neither is in a log, an artifact, the ledger or a message",
    "Configuration": "mistakes are told all at once, before anything is captured",
    "dbt and its commands": "plain dbt commands push, and never end green in silence",
    "dbt Cloud": "each finished run is pushed once, on its webhook or when asked",
    "Report and alerts": "people hear of a failure once, and of its end",
    "What people look at": "lines, bars and logs say what is true",
    "Packaging": "what is installed is what was tested",
}


def page() -> str:
    """The whole page."""
    found = proofs()
    unknown = {*found} - {*SECTIONS}
    if unknown:
        raise ValueError(f"found sections {', '.join(sorted(unknown))}; expected some of {', '.join(SECTIONS)}")
    return "\n".join([*summary(found), *details(found)]) + "\n"


def summary(found: dict[str, list[str]]) -> Iterator[str]:
    """The first screen."""
    yield "# Guarantees\n"
    yield "Made by `make docs` from the tests, which are named after what they prove; those marked *at night* run with `make test-full`, the others with `make test`.\n"
    yield "| about | tests | in short |"
    yield "|---|---|---|"
    for section, short in SECTIONS.items():
        yield f"| [{section}](#{anchor(section)}) | {len(found.get(section, []))} | {short} |"


def details(found: dict[str, list[str]]) -> Iterator[str]:
    """Each section with its tests."""
    for section in SECTIONS:
        yield f"\n## {section}\n"
        yield from found.get(section, [])


def proofs() -> dict[str, list[str]]:
    """Lines of the page by section; within one in the order of files and lines."""
    found: dict[str, list[str]] = {}
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        for section, sentence, tier in marked(file):
            found.setdefault(section, []).append(line(sentence, str(file.relative_to(ROOT)), tier))
    names = [node.name for node in functions(ROOT / CONTRACT) if node.name.startswith("test_")]
    found.setdefault("Every destination", [])[:0] = [line(spoken(name), CONTRACT) for name in names]
    return found


def marked(file: Path) -> Iterator[tuple[str, str, str]]:
    """Section, sentence and tier of each test of a file that proves a guarantee."""
    all_at_night = (
        file.is_relative_to(ROOT / "tests" / "full") or "\npytestmark = pytest.mark.full\n" in file.read_text()
    )
    for node in functions(file):
        marks = {ast.unparse(mark) for mark in node.decorator_list}
        at_night = all_at_night or "pytest.mark.full" in marks
        tier = "test, at night" if at_night else "test"
        for mark in node.decorator_list:
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.guarantee":
                section, *said = (ast.literal_eval(argument) for argument in mark.args)
                yield section, said[0] if said else spoken(node.name), tier


def functions(file: Path) -> list[ast.FunctionDef]:
    """All of a file, those of its classes too, in the order of their lines."""
    found = [
        node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.FunctionDef)
    ]
    return sorted(found, key=lambda node: node.lineno)


def spoken(name: str) -> str:
    """test_a_crash_loses_nothing -> A crash loses nothing"""
    words = name.removeprefix("test_").replace("_", " ")
    return words[:1].upper() + words[1:]


def line(sentence: str, file: str, tier: str = "test") -> str:
    """One guarantee and a link to the file that proves it."""
    return f"- {sentence} ([{tier}](../{file}))"


def anchor(section: str) -> str:
    """As GitHub makes it of a heading."""
    return section.lower().replace(" ", "-")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
