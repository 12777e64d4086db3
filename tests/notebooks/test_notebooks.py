"""The notebooks run headless, as `make demo` runs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_a_notebook_runs(path: Path) -> None:
    command = [sys.executable, str(ROOT / "notebooks" / "run.py"), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for expected in (
        "hello from",
        "epoch 4/4",
        "still the same kernel: True",
        "IPython.core.display.HTML",
        "epoch 3/3",
    ):
        assert expected in done.stdout
