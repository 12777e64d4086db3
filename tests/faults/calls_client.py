"""A script that makes calls, and may be killed: it does what the lines of its standard input say.

It is copied to a folder of its own before it is started. Each line is JSON, and so is each answer.
"""

from __future__ import annotations

import fcntl
import json
import os
import runpy
import sys
import time
from collections.abc import Iterable

import gpulayer as gl
from gpulayer.functions import running

HELD = 20  # calls from this one on wait while the gate is held


def note(folder: str, index: int, failpoints: str) -> None:
    """Write down that this call runs here; wait at the gate."""
    log = os.open(f"{folder}/runs.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(log, f"{index} {os.getpid()}\n".encode())
    os.close(log)
    if index == HELD:
        runpy.run_path(failpoints)["reach"]("call.running")
    if index >= HELD:
        with open(f"{folder}/gate") as gate:
            fcntl.flock(gate, fcntl.LOCK_SH)
    time.sleep(0.01)


@gl.remote
def function(folder: str, index: int, failpoints: str) -> tuple[int, int, int]:
    note(folder, index, failpoints)
    return index, 0, os.getpid()


@gl.remote
class Object:
    def __init__(self) -> None:
        self.calls = 0

    def method(self, folder: str, index: int, failpoints: str) -> tuple[int, int, int]:
        note(folder, index, failpoints)
        self.calls += 1
        return index, self.calls, os.getpid()


def say(**answer: object) -> None:
    print(json.dumps(answer), flush=True)


def take(results: Iterable[object]) -> None:
    """All results, and how it ended."""
    taken: list[object] = []
    try:
        for result in results:
            taken.append(result)
    except gl.RemoteError as error:
        say(results=taken, error=str(error))
    else:
        say(results=taken, error="")


def main() -> None:
    assert hasattr(running, "_FLUSH_S")
    setattr(running, "_FLUSH_S", 60.0)  # noqa: B010 all arguments leave at once, however slow the machine is
    say(ready=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["attach"]:
            take(gl.call(asked["attach"]))
            continue
        arguments = [(asked["folder"], index, asked["failpoints"]) for index in range(asked["count"])]
        if asked["kind"] == "function":
            take(function.starmap(arguments))
        else:
            with Object.remote() as made:
                take(made.method.starmap(arguments))


if __name__ == "__main__":
    main()
