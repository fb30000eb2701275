"""A machine of its own for a script: this one's files, of which nothing that it writes stays; made of namespaces, as containers are."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import ROOT

# Only root may mount; where a test does not run as root, sudo may be allowed without a password.
_AS_ROOT = [] if os.geteuid() == 0 else ["sudo", "-n"]
_NAMESPACES = ["unshare", "--mount", "--pid", "--fork", "--kill-child=KILL"]
# Ends the namespaces with all that runs in them once its input is closed; `unshare` itself heeds no SIGTERM.
_LIFELINE = 'exec 3<&0; "$@" </dev/null & child=$!; (cat <&3 >/dev/null; kill -KILL $child) & wait $child'
# What the machine gets from this one, read-only: the project, and the Python that runs the tests.
_GIVEN = [ROOT, Path(sys.prefix), Path(sys.base_prefix)]

_MADE = """
set -eu
mount -t tmpfs machine {here}
mkdir {here}/up {here}/work {here}/root
mount -t overlay machine -o lowerdir=/,upperdir={here}/up,workdir={here}/work {here}/root
cd {here}/root
mount --rbind /dev dev
mount -t proc proc proc
for one in tmp var/tmp srv home var/lib/private; do mkdir -p $one; mount -t tmpfs fresh $one; done
chmod 1777 tmp var/tmp
# The users of a fresh system.
for one in passwd group; do awk -F: '$3 < 1000 || $3 > 60000' /etc/$one > etc/$one; done
# The parents of Python may be closed to others.
for one in {parents}; do mkdir -p .$one; chmod a+x .$one; done
for one in {given}; do mkdir -p .$one; mount --bind $one .$one; mount -o remount,bind,ro .$one; done
mkdir -p ./shared
mount --bind {shared} ./shared
exec chroot . /bin/sh -eu /shared/script
"""


def _can_be_made() -> bool:
    done = subprocess.run([*_AS_ROOT, *_NAMESPACES, "true"], capture_output=True, check=False)
    return done.returncode == 0


@contextmanager
def machine(script: str, shared: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a script as root of a machine that ends with this context. It sees `shared` as /shared, and its network is this machine's."""
    if not _can_be_made():
        pytest.fail(
            "found no right to make namespaces of mounts; expected root, or user namespaces as most Linux machines allow them"
        )
    here = shared / "machine"
    here.mkdir()
    (shared / "script").write_text(script)
    parents = [path for one in _GIVEN for path in one.parents if path != Path("/")]
    words = {"here": here, "shared": shared, "given": " ".join(map(str, _GIVEN))}
    made = _MADE.format(**words, parents=" ".join(dict.fromkeys(map(str, parents))))
    command = [*_AS_ROOT, "sh", "-c", _LIFELINE, "sh", *_NAMESPACES, "sh", "-c", made]
    with (shared / "log").open("w") as log:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, text=True)
    try:
        yield process
    finally:
        assert process.stdin
        process.stdin.close()
        process.wait(30)


def said(shared: Path) -> str:
    """What the script wrote."""
    return (shared / "log").read_text()


def as_user(user: str, folder: str, env: dict[str, str], command: str) -> str:
    """A line of shell that becomes a command of a user, who has the variables named and no others."""
    given = [f"{name}={value}" for name, value in env.items()]
    rights = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--no-new-privs"]
    return f"cd {folder}\nexec {shlex.join(['env', '-i', *given, *rights])} {command}\n"
