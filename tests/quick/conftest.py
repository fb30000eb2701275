"""Pure tests: no JVM, no server but HTTP on loopback, no network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import certifi
import pytest

from tests.support.servers.http import server
from tests.support.sinks.sqlite_file import db, path

__all__ = ["db", "path", "server"]


@pytest.fixture(scope="module", autouse=True)
def one_authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """OpenSSL takes 17 ms to read all authorities of the web, for each sink; no test here meets one of them."""
    end = "-----END CERTIFICATE-----\n"
    first = Path(certifi.where()).read_text().partition(end)[0] + end
    file = tmp_path_factory.mktemp("certifi") / "cacert.pem"
    file.write_text(first)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certifi, "where", lambda: str(file))
        yield
