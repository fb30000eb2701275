"""A Singer target that behaves as its first argument says, once it got a record. It stores records in the file `out` of its config."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def main(what, config):
    records, state = 0, None
    if what == "never reads":
        time.sleep(600)
    for line in sys.stdin:
        message = json.loads(line)
        if message["type"] == "STATE":
            state = message["value"]
        if message["type"] != "RECORD":
            continue
        records += 1
        with Path(config["out"]).open("a") as out:
            out.write(json.dumps(message["record"]) + "\n")
        if records == 3:
            at_the_third_record(what, config)
        if what == "is chatty":
            print("x" * 200, flush=True)
    if records or "probe" in what:
        at_the_end(what, state, config)
    say(state)


def at_the_third_record(what, config):
    if what == "dies":
        os._exit(1)
    if what == "dies once" and not Path(config["out"] + ".died").exists():
        Path(config["out"] + ".died").touch()
        os._exit(1)
    if what == "leaves early with success":
        os._exit(0)
    if what == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if "ignores SIGTERM" in what:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "hangs" in what:
        child = subprocess.Popen(["sleep", "600"])
        Path(config["out"] + ".pids").write_text(f"{os.getpid()} {child.pid} {sys.argv[-1]}")
        time.sleep(600)


def at_the_end(what, state, config):
    if what.startswith("says nothing"):
        sys.exit(0)
    if what == "says an older state":
        say(state | {"dbt_reverse_etl": state["dbt_reverse_etl"] | {"batch": "0" * 32}})
        sys.exit(0)
    if what == "says the state and then something else":
        say(state)
        print("done", flush=True)
        sys.exit(0)
    if what == "says the state and fails":
        say(state)
        sys.exit(3)
    if what == "says much to stderr":
        sys.stderr.write("canary-words " * 500_000)
    if what == "says garbage first":
        sys.stdout.buffer.write(b"\xff\0{" * 500_000 + b"\n" * 1000)
    if what == "leaves a child behind":
        child = subprocess.Popen(["sleep", "600"])
        Path(config["out"] + ".pids").write_text(str(child.pid))
    if what == "leaves a daemon behind":
        child = subprocess.Popen(["sleep", "60"], start_new_session=True)
        Path(config["out"] + ".pids").write_text(str(child.pid))
    if what == "tells what it sees":
        file = Path(sys.argv[-1])
        seen = {"argv": sys.argv, "env": dict(os.environ), "config": config, "mode": file.stat().st_mode & 0o777}
        Path(config["out"] + ".seen").write_text(json.dumps(seen))


def say(state):
    print(json.dumps(state), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(Path(sys.argv[-1]).read_text()))
