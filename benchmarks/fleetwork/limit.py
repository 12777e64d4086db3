"""The limit: the same programs by bare `posix_spawn`, each with a session and two files of its own.

`python limit.py COUNT ALIVE FOLDER PROGRAM` prints the seconds. A process of its own: in a large one each
start is slower.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path


def spawn_all(argv: Sequence[str], count: int, folder: Path, *, alive: int) -> float:
    """Run a program `count` times, `alive` at a time; the seconds that it took. Raises RuntimeError if one failed."""
    folder.mkdir()
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    began = time.perf_counter()
    running, failed = 0, 0
    for n in range(count):
        actions = [
            (os.POSIX_SPAWN_OPEN, 1, f"{folder}/{n}.out", flags, 0o600),
            (os.POSIX_SPAWN_OPEN, 2, f"{folder}/{n}.err", flags, 0o600),
        ]
        os.posix_spawnp(argv[0], argv, os.environ, file_actions=actions, setsid=True)
        running += 1
        while running >= alive:
            failed += os.waitpid(-1, 0)[1] != 0
            running -= 1
    while running:
        failed += os.waitpid(-1, 0)[1] != 0
        running -= 1
    if failed:
        raise RuntimeError(f"{failed} of {count} runs of {argv[0]} failed")
    return time.perf_counter() - began


def measure(argv: Sequence[str], count: int, folder: Path, *, alive: int) -> float:
    """`spawn_all` in a small process."""
    command = [sys.executable, "-S", __file__, str(count), str(alive), str(folder), *argv]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


if __name__ == "__main__":
    print(spawn_all(sys.argv[4:], int(sys.argv[1]), Path(sys.argv[3]), alive=int(sys.argv[2])))
