"""Programs in a process of their own without the seconds of their imports: a server that has imported them forks for each call.

Unlike a fork of the test's process it has no threads, and nothing that a test left behind.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any

from tests.support import ROOT


class Forks:
    """A process that has imported modules, and forks to call a function of one of them."""

    def __init__(self, *modules: str) -> None:
        # Its session is its own: Ctrl-C ends the test, and that ends the server by its closed input.
        command = [sys.executable, "-c", f"from {__name__} import serve; serve()", *modules]
        self._server = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True, cwd=ROOT
        )
        self._lock = Lock()

    def run(self, function: str, arguments: list[str], cwd: Path, env: Mapping[str, str]) -> tuple[int, str]:
        """Exit code, and what was said, of `module:function` called with `sys.argv` set; as a shell would see it."""
        with tempfile.NamedTemporaryFile(mode="r+") as said, self._lock:
            order = {"function": function, "arguments": arguments, "cwd": str(cwd), "env": dict(env), "said": said.name}
            assert self._server.stdin
            assert self._server.stdout
            self._server.stdin.write(json.dumps(order) + "\n")
            self._server.stdin.flush()
            ended = self._server.stdout.readline()
            assert ended, "the server that forks has ended"
            return int(ended), Path(said.name).read_text()


@cache
def dbt_forks() -> Forks:
    """One that has imported dbt with its adapter, and what our plugin imports."""
    return Forks("dbt.cli.main", "dbt.adapters.spark", "dbt.plugins", "dbt_reverse_etl.plugin")


def dbt(cwd: Path, env: Mapping[str, str], *arguments: str) -> None:
    """Real dbt, in a process of its own; parse and compile start no Spark."""
    code, said = dbt_forks().run("dbt.cli.main:cli", [*arguments], cwd, env)
    assert code == 0, said


@cache
def _sink_forks() -> Forks:
    return Forks("pyarrow.parquet", "tests.support.sinks.files", "tests.support.sinks.people")


def python(program: str) -> tuple[int, str]:
    """Exit code, below zero the signal that killed it, and what was said, of a program that uses sinks of files and databases."""
    return _sink_forks().run(f"{__name__}:run_program", [program], ROOT, os.environ)


def run_program() -> None:
    """What a call of `python` is in its process."""
    exec(sys.argv[1], {"__name__": "__main__"})


def serve() -> None:
    """Until the input ends."""
    for module in sys.argv[1:]:
        import_module(module)
    for line in sys.stdin:
        process = os.fork()
        if process == 0:
            _be(**json.loads(line))
        _, status = os.waitpid(process, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _be(function: str, arguments: list[str], cwd: str, env: Mapping[str, str], said: str) -> Any:
    code: Any = 1
    try:
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(env)
        nothing, file = os.open(os.devnull, os.O_RDONLY), os.open(said, os.O_WRONLY | os.O_APPEND)
        for target, source in enumerate((nothing, file, file)):
            os.dup2(source, target)
        sys.argv = [function, *arguments]
        module, _, name = function.partition(":")
        getattr(import_module(module), name)()
        code = 0
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)
