"""What Docker does with a Dockerfile, as far as ours asks for it, as the script of a machine that already has its packages."""

from __future__ import annotations

import json
import re
import shlex
import sys
from dataclasses import dataclass, field

# The machine has Java, Python and the packages: what would install them says only what it was asked for.
_SHIMS = """
mkdir /shims
for one in apt-get pip; do printf '#!/bin/sh\\necho "$(basename "$0") $*"\\n' > /shims/$one; done
chmod +x /shims/*
"""
PATH = f"/shims:{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin"


@dataclass
class Image:
    """The script that makes it, and what it says about its container.

    Attributes:
        entrypoint, command, health: words.
        volume: the folder that outlives the container.
    """

    script: str = _SHIMS
    user: str = "root"
    folder: str = "/"
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)
    port: int = 0
    volume: str = ""


def built(dockerfile: str, context: str) -> Image:
    """Each instruction in turn, with the files of a folder of the machine."""
    image = Image()
    lines = [
        line for line in re.sub(r"\\\n", " ", dockerfile).splitlines() if line.strip() and not line.startswith("#")
    ]
    for line in lines:
        name, value = line.split(maxsplit=1)
        if name == "RUN":
            image.script += _run(image, value)
        elif name == "COPY":
            owner, sources, to = re.fullmatch(r"(?:--chown=(\S+) )?(.*) (\S+)", value).groups()  # type: ignore[union-attr]
            image.script += f"mkdir -p {to}; cp -r {' '.join(f'{context}/{one}' for one in sources.split())} {to}\n"
            image.script += f"chown -R {owner}:{owner} {to}\n" if owner else ""
        elif name == "VOLUME":  # a folder that is not there is made, as root
            image.volume = value
            image.script += f"mkdir -p {value}\n"
        elif name == "EXPOSE":
            image.port = int(value)
        elif name == "HEALTHCHECK":
            image.health = json.loads(value.removeprefix("CMD "))
        elif name == "ENTRYPOINT":
            image.entrypoint = json.loads(value)
        elif name == "CMD":
            image.command = json.loads(value)
        else:
            assert name in {"FROM", "USER", "WORKDIR"}, f"an instruction that this does not know: {name}"
            image.user = value if name == "USER" else image.user
            image.folder = value if name == "WORKDIR" else image.folder
            image.script += f"mkdir -p {value}\n" if name == "WORKDIR" else ""
    return image


def _run(image: Image, command: str) -> str:
    words = ["setpriv", f"--reuid={image.user}", f"--regid={image.user}", "--init-groups"]
    given = ["env", "-i", f"PATH={PATH}", "HOME=/tmp"]
    return f"cd {image.folder}; {shlex.join([*given, *words, 'sh', '-euc', command])}\n"
