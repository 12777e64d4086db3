"""What the agent says of its own interpreter is what a fresh process of it says."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest

from gpulayer_worker.probes.packages import own

_CODE = "from gpulayer_worker.probes.packages import look, own; print({0}, own(sys.executable) == look(sys.executable))"
_OWN = "own(sys.executable) is not None"


def said(env: dict[str, str], *flags: str) -> str:
    command = [sys.executable, *flags, "-c", "import sys; " + _CODE.format(_OWN)]
    done = subprocess.run(command, cwd="/", env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_it_says_the_same_of_itself() -> None:
    assert said({}) == "True True"


@pytest.mark.parametrize("flags", [(), ("-s",)])
def test_where_it_imports_from_elsewhere_it_says_nothing(tmp_path: Path, flags: tuple[str, ...]) -> None:
    env = {} if flags else {"PYTHONPATH": str(tmp_path)}
    assert said(env, *flags) == "False False"


def test_it_says_nothing_of_another_one(tmp_path: Path) -> None:
    venv.create(tmp_path / "env", symlinks=True)
    assert own(str(tmp_path / "env/bin/python")) is None
