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
TOOLS = Path(PYTHON).parent

PARTS: dict[str, list[list[str]]] = {
    "lint": [[PYTHON, "-m", "ruff", "check", "."], [PYTHON, "-m", "ruff", "format", "--check", "."]],
    "types": [[PYTHON, "-m", "pyright"]],
    "layers": [[str(TOOLS / "lint-imports"), "--no-logo"]],
    "unit": [[*PYTEST, "tests/unit"]],
    "simulation": [[*PYTEST, "tests/simulation"]],
    "integration": [[*PYTEST, "tests/integration"]],
    "faults": [[*PYTEST, "tests/faults"]],
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
    with tempfile.TemporaryDirectory(prefix="gpul-home-") as home:
        # no test reads or writes the data folder of whoever runs it
        environment["XDG_DATA_HOME"] = home
        for part in options.parts or PARTS:
            began = time.monotonic()
            print(f"\n── {part} " + "─" * (60 - len(part)), flush=True)
            passed = all(run(command, environment) for command in PARTS[part])
            rows.append((part, time.monotonic() - began, passed))
    print("\npart          seconds")
    for part, seconds, passed in rows:
        print(f"{part:<12} {seconds:>8.1f}  {'passed' if passed else 'FAILED'}")
    print(f"{'all':<12} {sum(row[1] for row in rows):>8.1f}", flush=True)
    return 0 if all(row[2] for row in rows) else 1


def run(command: list[str], environment: dict[str, str]) -> bool:
    """Whether a command succeeded."""
    return subprocess.run(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
