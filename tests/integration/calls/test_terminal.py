"""Functions in the terminal: the program that calls them, and what `gpulayer job` says of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.deployment import Deployment
from tests.support.processes import until
from tests.support.terminal import Cli, Screen

PROGRAM = """
import os, sys, time
import gpulayer as gl

@gl.remote
def step(n, gate):
    print("step", n)
    while n and not os.path.exists(gate):
        time.sleep(0.02)
    return n

if __name__ == "__main__":
    print("sum", sum(step.map(range(2), [sys.argv[1]] * 2)))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


@pytest.fixture
def cli(deployment: Deployment, folder: Path) -> Cli:
    return Cli(folder, deployment.env | {"GPULAYER_EMBEDDED": "0"})


def program(cli: Cli, gate: Path) -> Screen:
    return Screen([sys.executable, "program.py", str(gate)], cli.folder, cli.env)


def step(cli: Cli) -> dict[str, Any]:
    """The last job of that function."""
    jobs = json.loads(cli.run("job", "list", "--json").stdout)
    return next(job for job in jobs if job["name"] == "step")


def test_a_map_is_followed_in_the_terminal_and_looked_at_from_another_one(cli: Cli, folder: Path) -> None:
    gate = folder / "gate"
    with program(cli, gate) as screen:
        screen.until("1 of 2")
        job = step(cli)
        shown = cli.run("job", "show", job["id"]).stdout
        assert "1 of 2 calls done" in shown
        assert f"{job['id']}.1" in shown
        assert cli.run("job", "wait", job["id"], "--timeout", "0.1s", code=75).stderr.startswith("● 1 of 2 calls done")
        gate.touch()
        assert screen.end() == 0
    assert "✓ step · 2 calls in " in screen.plain
    assert "sum 1" in screen.plain
    assert "2 calls done" in cli.run("job", "wait", job["id"]).stderr
    assert sorted(cli.run("job", "logs", job["id"]).stdout.splitlines()) == ["step 0", "step 1"]


def test_ctrl_c_ends_a_map_and_says_so(cli: Cli, folder: Path) -> None:
    with program(cli, folder / "never") as screen:
        screen.until("1 of 2")
        screen.press("\x03")
        assert screen.end() != 0
    assert "■ step · cancelled after 1 call" in screen.plain
    assert screen.plain.rstrip().endswith("KeyboardInterrupt")
    assert step(cli)["calls"]["done"] == 1
    until(lambda: not step(cli)["calls"]["running"], "the call to be ended")
