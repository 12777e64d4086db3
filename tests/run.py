"""`make test`: every part, several at a time, with the seconds that each took. `--all` runs every combination.

`python tests/run.py unit faults` runs only the parts named. What a part said is printed once it is over. Exit code 1 if
any part failed; the others run too.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = sys.executable
PYTEST = [PYTHON, "-m", "pytest", "-q", "--timeout", "180"]  # more than by hand: others are at work beside it
BESIDE = ["-n", "2", "--dist", "loadfile"]  # two files at a time: most of the time they wait for processes
MATRIX = "tests/faults/test_kill_matrix.py"
CANNOT = 75  # of tests/support/unprivileged.py, where this machine has no way
TOOLS = Path(PYTHON).parent
AT_ONCE = 3  # processes with tests, on two processors: one more, since they wait so much


@dataclass(frozen=True, kw_only=True)
class Part:
    """Commands, one after the other."""

    commands: list[list[str]]
    processes: int = 1  # that are at work at a time


@dataclass(frozen=True, kw_only=True)
class Done:
    """A part that is over."""

    name: str
    seconds: float
    codes: list[int]

    @property
    def passed(self) -> bool:
        """Whether all of it did, or could not be run here."""
        return all(code in (0, CANNOT) for code in self.codes)


# the long ones first: of the others each begins as soon as there is room for it
PARTS: dict[str, Part] = {
    "integration": Part(commands=[[*PYTEST, *BESIDE, "tests/integration"]], processes=2),
    "lint": Part(commands=[[PYTHON, "-m", "ruff", "check", "."], [PYTHON, "-m", "ruff", "format", "--check", "."]]),
    "types": Part(commands=[[PYTHON, "-m", "pyright"]]),
    "layers": Part(commands=[[str(TOOLS / "lint-imports"), "--no-logo"]]),
    "browser": Part(commands=[[*PYTEST, "tests/browser"]]),
    "simulation": Part(commands=[[*PYTEST, "tests/simulation"]]),
    "panel": Part(
        commands=[["npm", "--prefix", "labextension", "run", "--silent", each] for each in ("lint", "test")],
    ),
    "packaging": Part(commands=[[*PYTEST, "tests/packaging"]]),
    "notebooks": Part(commands=[[*PYTEST, "tests/notebooks"]]),
    "unit": Part(commands=[[*PYTEST, "tests/unit"]]),
    "faults": Part(
        commands=[
            [*PYTEST, *BESIDE, "tests/faults"],
            [PYTHON, "tests/support/unprivileged.py", *PYTEST, "-p", "no:cacheprovider", MATRIX, "-k", "unprivileged"],
        ],
        processes=2,
    ),
}
ALONE = {"unit": Part(commands=[[*PYTEST, *BESIDE, "tests/unit"]], processes=2)}  # where it is the only one


def main() -> int:
    """Run the parts; print a table of seconds at the end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="default: all")
    parser.add_argument("--all", action="store_true", help="every combination, not a sample")
    options = parser.parse_args()
    environment = dict(os.environ)
    if options.all:
        environment["GPULAYER_TEST_ALL"] = "1"
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gpul-tests-") as folder:
        failed = Path(folder) / "failed-tests"
        environment["GPULAYER_TEST_FAILED"] = str(failed)
        rows = run_all(options.parts or PARTS, environment, Path(folder))
        lines = failed.read_text(encoding="utf-8").splitlines() if failed.exists() else []
    print("\npart          seconds")
    for row in rows:
        print(f"{row.name:<12} {row.seconds:>8.1f}  {'passed' if row.passed else 'FAILED'}")
    for row in rows:
        if CANNOT in row.codes:
            print(f"skipped in {row.name}: the combination 'unprivileged' can't be run on this machine, see above")
    print(f"{'all':<12} {time.monotonic() - began:>8.1f}", flush=True)
    for line in lines:
        print(f"FAILED {line}", flush=True)
    return 0 if all(row.passed for row in rows) else 1


def run_all(names: Iterable[str], environment: dict[str, str], folder: Path) -> list[Done]:
    """Run parts, so many at a time that `AT_ONCE` processes are at work; in the order in which they ended."""
    waiting = [name for name in PARTS if name in set(names)]
    parts = PARTS | ALONE if len(waiting) == 1 else PARTS
    running: dict[Future[Done], int] = {}
    ended: list[Done] = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        while waiting or running:
            room = AT_ONCE - sum(running.values())
            fits = next((name for name in waiting if parts[name].processes <= room), None)
            if fits is not None:
                waiting.remove(fits)
                print(f"{fits} begins", flush=True)
                begun = pool.submit(run, fits, parts[fits], environment, folder / f"{fits}.said")
                running[begun] = parts[fits].processes
                continue
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                del running[done]
                ended.append(done.result())
    return ended


def run(name: str, part: Part, environment: dict[str, str], said: Path) -> Done:
    """Run a part, and print what it said."""
    began, codes = time.monotonic(), []
    # no test reads or writes the data folder of whoever runs it, nor that of another part; a short path, for sockets
    with said.open("wb") as file, tempfile.TemporaryDirectory(prefix="gpul-", ignore_cleanup_errors=True) as home:
        own = environment | {"XDG_DATA_HOME": home}
        for command in part.commands:
            done = subprocess.run(
                command, cwd=ROOT, env=own, stdin=subprocess.DEVNULL, stdout=file, stderr=file, check=False
            )
            codes.append(done.returncode)
    text = said.read_text(encoding="utf-8", errors="replace")
    print(f"\n── {name} {'─' * (60 - len(name))}\n{text}", flush=True)
    return Done(name=name, seconds=time.monotonic() - began, codes=codes)


if __name__ == "__main__":
    sys.exit(main())
