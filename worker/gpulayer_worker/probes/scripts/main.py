"""A probe: `main.py JSON` imports one framework, computes on each target and says what came of it, in JSON lines.

Its standard input is a pipe that the parent holds: when that closes, the parent is gone, and so is this process group.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading

from harness import Talk, words


def main() -> None:
    """Never returns by itself: teardown of a framework says nothing of what it computes."""
    ask = json.loads(sys.argv[1])
    _end_with_parent(ask["longest_s"])
    talk = Talk(ask["mark"])
    script = importlib.import_module(ask["script"])
    sys.path.pop(0)  # our own folder
    talk.at("importing")
    try:
        script.probe(talk, ask["targets"], ask["about"])
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a framework raises is what the probe is for
        talk.unusable(f"can't be imported: {words(error)}")
    talk.say(done=True)
    os._exit(0)


def _end_with_parent(longest_s: int) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(longest_s)  # also where a framework hangs with the interpreter's lock held
    if sys.platform == "linux":
        try:
            import ctypes

            ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))  # PR_SET_PDEATHSIG
        except (ImportError, OSError, AttributeError):
            pass  # the thread below does it too, only later
    threading.Thread(target=_watch, daemon=True).start()


def _watch() -> None:
    try:
        while os.read(0, 1024):
            pass
    except OSError:
        return  # closed by the framework: the parent's deadline and the alarm are left
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    main()
