"""Tests of one file that share the runs of one dbt project: a run costs seconds, and most of them whatever it captures.

Each is a generator: it writes models of its own into the project, and where it needs a `dbt run` it yields and gets the result.
Their next runs are one run, so that a file costs as many as its longest test. What fails in one fails its own test alone.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.dbt.project import Project, Result

Story = Generator[None, Result, None]
Telling = Callable[[Project], Story]


def together(tell: Telling) -> Callable[[dict[str, BaseException | None]], None]:
    """Makes the test of a story; its module has the fixture `outcomes`, from here."""

    @functools.wraps(tell)
    def test(outcomes: dict[str, BaseException | None]) -> None:
        error = outcomes[tell.__name__]
        if error is not None:
            raise error

    del test.__wrapped__  # type: ignore[attr-defined]  # whose arguments pytest would take for fixtures
    test.story = tell  # type: ignore[attr-defined]
    return test


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, BaseException | None]:
    """How the stories of this module ended that were asked for, by the names of their tests."""
    functions = {getattr(item, "function", None) for item in request.session.items if item.path == request.path}
    stories: list[Telling] = [one.story for one in functions if hasattr(one, "story")]
    schema = re.sub(r"\W+", "_", str(request.path.relative_to(request.path.parents[1]).with_suffix("")))
    folder = tmp_path_factory.mktemp("together") / "shop"
    return _told(Project(folder, spark, schema), sorted(stories, key=lambda one: one.__name__))


def _told(project: Project, stories: list[Telling]) -> dict[str, BaseException | None]:
    """Every story, run by run."""
    ended: dict[str, BaseException | None] = {}
    going = {tell.__name__: tell(project) for tell in stories}
    files: dict[str, set[Path]] = {name: set() for name in going}
    result: Any = None
    while going:
        for name, story in list(going.items()):
            before = _files(project)
            try:
                story.send(result)
                files[name] |= _files(project) - before
            except BaseException as error:  # what fails in one story fails its own test
                if isinstance(error, KeyboardInterrupt):
                    raise
                ended[name] = None if isinstance(error, StopIteration) else error
                del going[name]
                # Nobody asks about its models any more.
                for file in files[name] | (_files(project) - before):
                    file.unlink(missing_ok=True)
        if going:
            result = project.run()
    return ended


def _files(project: Project) -> set[Path]:
    return {*(project.folder / "models").iterdir()}
