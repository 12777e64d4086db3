"""A worker whose jobs have frameworks: ready at once, probed beside the work, and known at its next start."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from gpulayer.protocol.machines import Framework, Inventory
from gpulayer.protocol.types import State
from tests.support.commands import Bench
from tests.support.deployment import Deployment
from tests.support.frameworks import TORCH, interpreter
from tests.support.processes import until

PYTHON = os.environ.get("GPULAYER_TEST_FRAMEWORKS", "")
_LONG_S = 300.0  # they get the time that nothing else on this machine wants
WAITS = """
import time
def hook(name):
    while not os.path.exists(os.environ["CUDA_GO"]):
        time.sleep(0.02)
"""


@pytest.fixture
def plane() -> Iterator[Deployment]:
    """A control plane of the test's own."""
    with Deployment() as deployment:
        deployment.plane.start()
        yield deployment


def inventory(plane: Deployment) -> Inventory:
    """What its one worker is and has."""
    return plane.api.workers()[0].inventory


def torch(plane: Deployment) -> Framework | None:
    """What is told of torch."""
    return next((each for each in inventory(plane).frameworks if each.name == "torch"), None)


def test_commands_run_while_a_framework_is_probed(plane: Deployment) -> None:
    go = plane.folder / "go"
    python = interpreter(plane.folder / "env", {"torch": ("2.13.0", TORCH + WAITS)})
    worker = plane.worker("alpha", python=python, warm=0, env={"CUDA_GO": str(go)})
    until(lambda: inventory(plane).probing == ("torch",), "it to be probed")
    view = Bench(plane, worker).run("echo it runs")
    assert (view.state, inventory(plane).probing) == (State.SUCCEEDED, ("torch",))
    go.touch()
    found = until(lambda: torch(plane), lambda: f"torch to be told:\n{worker.log}")
    until(lambda: inventory(plane).probing == (), "the probes' end")
    assert found.works == ("cpu",)


def test_a_worker_that_is_stopped_amid_a_probe_leaves_no_process(plane: Deployment) -> None:
    python = interpreter(plane.folder / "env", {"torch": ("2.13.0", TORCH + WAITS)})
    worker = plane.worker("alpha", python=python, warm=0, env={"CUDA_GO": str(plane.folder / "go")})
    until(lambda: "probe_torch" in str(plane.processes().values()), "the probe to run")
    worker.kill_agent()
    until(lambda: plane.connected("alpha") and "probe_torch" in str(plane.processes().values()), "the next probe")
    worker.stop()
    assert "probe_torch" not in str(plane.processes().values())


@pytest.mark.timeout(2 * _LONG_S)
@pytest.mark.skipif(
    not PYTHON, reason="GPULAYER_TEST_FRAMEWORKS names no interpreter with torch, jax and mlx; `make test` makes one"
)
def test_real_frameworks_are_told_and_known_at_the_next_start(plane: Deployment) -> None:
    worker = plane.worker("alpha", python=PYTHON, warm=0)
    until(lambda: not inventory(plane).probing, lambda: f"the probes:\n{inventory(plane)}\n{worker.log}", _LONG_S)
    found = torch(plane)
    assert found is not None
    assert ("cpu" in found.works, found.problems) == (True, {})
    known = worker.data / "probes.json"
    at = json.loads(known.read_bytes())["results"]["torch"]["outcomes"]["cpu"]["at"]
    worker.stop()
    until(lambda: not plane.connected("alpha"), "the worker to be gone")
    worker.start()
    until(lambda: plane.connected("alpha"), "the worker to come back")
    assert (torch(plane), inventory(plane).probing) == (found, ())
    assert json.loads(known.read_bytes())["results"]["torch"]["outcomes"]["cpu"]["at"] == at
    assert Bench(plane, worker).run("echo it runs").state == State.SUCCEEDED
