"""The notebooks run headless, as `make demo` runs them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = {
    "quickstart": (
        "hello from",
        "epoch 4/4",
        "still the same kernel: True",
        "IPython.core.display.HTML",
        "epoch 3/3",
    ),
    "sessions-and-files": (
        "the loss is kept: 1.225",
        "came back: ['fast', 'slow'] 0.769",
        "0,2.5\n1,1.7\n2,1.2",
        "study",
    ),
    "functions": (
        "one call: ",
        "pi is about 3.1",
        "the triangle has 0.50 of the square",
        "raised here: ZeroDivisionError",
        "0.25",
        "the same: True",
        "column sums: [499500000.0, 499501000.0, 499502000.0]",
        "the counter says 13",
    ),
    "detached-runs": ("submitted:", "long training", "epoch 4/4", "cancel"),
}


def test_every_notebook_is_run() -> None:
    assert {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")} == set(NOTEBOOKS)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "notebooks"  # a copy: what a notebook fetches is written beside it
    shutil.copytree(ROOT / "notebooks", folder)
    command = [sys.executable, str(folder / "run.py"), str(folder / f"{name}.ipynb")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for expected in NOTEBOOKS[name]:
        assert expected in done.stdout
