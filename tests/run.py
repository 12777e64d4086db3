"""`make test`: every part in order, with the seconds that each took. `--all` runs every combination.

`python tests/run.py unit faults` runs only the parts named. Exit code 1 if any part failed; the parts after it run too.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = sys.executable
PYTEST = [PYTHON, "-m", "pytest", "-q"]
BESIDE = ["-n", "2", "--dist", "loadfile"]  # two files at a time: most of the time they wait for processes
MATRIX = "tests/faults/test_kill_matrix.py"
CANNOT = 75  # of tests/support/unprivileged.py, where this machine has no way
TOOLS = Path(PYTHON).parent

PARTS: dict[str, list[list[str]]] = {
    "lint": [[PYTHON, "-m", "ruff", "check", "."], [PYTHON, "-m", "ruff", "format", "--check", "."]],
    "types": [[PYTHON, "-m", "pyright"]],
    "layers": [[str(TOOLS / "lint-imports"), "--no-logo"]],
    "unit": [[*PYTEST, *BESIDE, "tests/unit"]],
    "simulation": [[*PYTEST, "tests/simulation"]],
    "integration": [[*PYTEST, *BESIDE, "tests/integration"]],
    "faults": [
        [*PYTEST, *BESIDE, "tests/faults"],
        [PYTHON, "tests/support/unprivileged.py", *PYTEST, "-p", "no:cacheprovider", MATRIX, "-k", "unprivileged"],
    ],
    "panel": [["npm", "--prefix", "labextension", "run", "--silent", each] for each in ("lint", "test")],
    "browser": [[*PYTEST, "tests/browser"]],
    "notebooks": [[*PYTEST, "tests/notebooks"]],
    "packaging": [[*PYTEST, "tests/packaging"]],
}


def main() -> int:
    """Run the parts; print a table of seconds at the end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="default: all")
    parser.add_argument("--all", action="store_true", help="every combination, not a sample")
    options = parser.parse_args()
    environment = dict(os.environ)
    if options.all:
        environment["GPULAYER_TEST_ALL"] = "1"
    rows: list[tuple[str, float, bool]] = []
    not_here: list[str] = []
    with tempfile.TemporaryDirectory(prefix="gpul-home-") as home:
        # no test reads or writes the data folder of whoever runs it
        environment["XDG_DATA_HOME"] = home
        failed = Path(home) / "failed-tests"
        environment["GPULAYER_TEST_FAILED"] = str(failed)
        for part in options.parts or PARTS:
            began = time.monotonic()
            print(f"\n── {part} " + "─" * (60 - len(part)), flush=True)
            codes = [run(command, environment) for command in PARTS[part]]
            rows.append((part, time.monotonic() - began, all(code in (0, CANNOT) for code in codes)))
            if CANNOT in codes:
                not_here.append(f"{part}: the combination 'unprivileged' can't be run on this machine, see above")
        lines = failed.read_text(encoding="utf-8").splitlines() if failed.exists() else []
    print("\npart          seconds")
    for part, seconds, passed in rows:
        print(f"{part:<12} {seconds:>8.1f}  {'passed' if passed else 'FAILED'}")
    for line in not_here:
        print(f"skipped in {line}")
    print(f"{'all':<12} {sum(row[1] for row in rows):>8.1f}", flush=True)
    for line in lines:
        print(f"FAILED {line}", flush=True)
    return 0 if all(row[2] for row in rows) else 1


def run(command: list[str], environment: dict[str, str]) -> int:
    """A command's exit code."""
    return subprocess.run(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
