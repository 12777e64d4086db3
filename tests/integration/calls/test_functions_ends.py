"""Maps over interrupts, and over kills of whatever takes part."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpulayer as gl
from gpulayer.functions.hub import forget
from gpulayer.protocol.types import State
from tests.support.deployment import Deployment
from tests.support.processes import until
from tests.support.sessions import Session

CELL = """
import os
import time
import gpulayer as gl

@gl.remote
def noted(folder, x):
    with open(f"{folder}/{x}", "a") as file:
        file.write("x")
    return x

@gl.remote
def naps(folder, x):
    open(f"{folder}/began-{x}", "w").close()
    try:
        time.sleep(600)
    finally:
        open(f"{folder}/ended-{x}", "w").close()
"""

SCRIPT = (
    CELL
    + """
import sys
try:
    list(naps.map([sys.argv[1]] * 6, range(6)))
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
)


@pytest.fixture(scope="module")
def own() -> Iterator[Deployment]:
    """A control plane of these tests' own, which they may kill."""
    with Deployment() as deployment:
        deployment.plane.start()
        deployment.worker("alpha", slots=2, warm=0)
        yield deployment


@pytest.fixture
def session(own: Deployment, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """A notebook on it."""
    for name in ("GPULAYER_URL", "GPULAYER_TOKEN", "GPULAYER_FINGERPRINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GPULAYER_DATA", str(own.data))
    monkeypatch.setenv("GPULAYER_EMBEDDED", "0")
    forget()
    yield Session().cell(CELL)
    forget()


def test_a_map_goes_on_over_kills_of_the_control_plane_and_the_agent(
    session: Session, own: Deployment, tmp_path: Path
) -> None:
    def numbers() -> Iterator[int]:
        for number in range(3000):
            if number == 1000:
                own.plane.kill()
                own.plane.start()
            if number == 2000:
                own.workers["alpha"].kill_agent()
            yield number

    results = session["noted"].map(iter(lambda: str(tmp_path), ""), numbers())
    assert list(results) == list(range(3000))
    twice = [path.name for path in tmp_path.iterdir() if path.stat().st_size > 1]
    assert len(list(tmp_path.iterdir())) == 3000
    assert twice == [], "what ran was not run again"
    assert list(gl.call(results.id)) == list(range(3000))


def test_interrupted_in_a_script_everything_ends(session: Session, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    folder = tmp_path / "marks"
    folder.mkdir()
    process = subprocess.Popen(
        [sys.executable, str(script), str(folder)], env=dict(os.environ), stdout=subprocess.PIPE, text=True
    )
    until(lambda: len(list(folder.glob("began-*"))) == 2, "both slots run a call")
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert (out, process.returncode) == ("interrupted\n", 0)
    until(lambda: len(list(folder.glob("ended-*"))) == 2, "what ran was interrupted")
    assert len(list(folder.glob("began-*"))) == 2


def test_a_runner_that_dies_in_mid_batch_takes_no_result_with_it(session: Session, tmp_path: Path) -> None:
    session.cell(
        """
        @gl.remote
        def dies_once(folder, x):
            with open(f"{folder}/{x}", "a") as file:
                file.write("x")
            if x == 700 and not os.path.exists(f"{folder}/died"):
                open(f"{folder}/died", "w").close()
                os.kill(os.getpid(), 9)
            return x
        """
    )
    assert list(session["dies_once"].map([str(tmp_path)] * 1500, range(1500))) == list(range(1500))
    assert (tmp_path / "died").exists()
    twice = [path.name for path in tmp_path.iterdir() if path.stat().st_size > 1]
    assert "700" in twice
    assert len(twice) <= 300, "only what was in its hands runs again"


def test_a_map_that_is_detached_goes_on_without_its_process(session: Session, tmp_path: Path) -> None:
    results = session["noted"].map([str(tmp_path)] * 3000, iter(range(3000)))
    name = results.detach()
    forget()
    found = gl.call(name)
    assert isinstance(found, gl.Map)
    assert list(found) == list(range(3000))
    assert found.status().state is State.SUCCEEDED
