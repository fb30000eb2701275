"""A real headless browser: that of the machine, or Debian's package with the libraries it lacks, unpacked once without root."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from tests.support.servers.unpacked import unpacked

NAMES = ("chromium", "chromium-headless-shell", "google-chrome", "google-chrome-stable", "chromium-browser")
PACKAGE = "chromium-headless-shell"
HINT = "install Chromium or Chrome, so that `chromium` or `google-chrome` is on PATH"


@contextmanager
def headless() -> Iterator[Browser]:
    """One browser process, ended at the end."""
    program, environment = _program()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, env={**os.environ, **environment}, args=["--disable-gpu"]
        )
        try:
            yield browser
        finally:
            browser.close()


def _program() -> tuple[str, dict[str, str]]:
    found = next((path for path in map(shutil.which, NAMES) if path), None)
    if found:
        return found, {}
    root = unpacked("chromium", _download, HINT)
    libraries = os.pathsep.join(sorted({str(library.parent) for library in root.glob("**/*.so*")}))
    program = next(path for path in root.glob(f"usr/**/{PACKAGE}") if os.access(path, os.X_OK) and path.is_file())
    return str(program), {"LD_LIBRARY_PATH": libraries}


def _download(place: Path) -> None:
    """The package and what the machine lacks for it, into `place`/archives; nothing is installed."""
    (place / "lists" / "partial").mkdir(parents=True)
    (place / "archives" / "partial").mkdir(parents=True)
    own = ["Dir::State::lists", "Dir::Cache", "Dir::Cache::archives"]
    folders = (place / "lists", place, place / "archives")
    settings = [f"{name}={folder}" for name, folder in zip(own, folders, strict=True)]
    options = [word for one in [*settings, "Debug::NoLocking=1", "APT::Sandbox::User="] for word in ("-o", one)]
    for command in (["update"], ["install", "--download-only", "--no-install-recommends", "-y", PACKAGE]):
        subprocess.run(["apt-get", *options, "-qq", *command], check=True, capture_output=True)
