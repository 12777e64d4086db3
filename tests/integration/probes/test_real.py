"""torch, jax and mlx themselves, on the CPU, in an interpreter that has nothing of ours."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpulayer.protocol.machines import Framework, Inventory
from gpulayer_worker.probes import probe_all
from tests.support.frameworks import card, machine

PYTHON = os.environ.get("GPULAYER_TEST_FRAMEWORKS", "")
pytestmark = [
    pytest.mark.skipif(
        not PYTHON,
        reason="GPULAYER_TEST_FRAMEWORKS names no interpreter with torch, jax and mlx; `make test` makes one",
    ),
    pytest.mark.timeout(600),  # they get the time that nothing else on this machine wants
]


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Framework]:
    """By name, on a machine with one CUDA device and an old driver, as its inventory says."""
    inventory: Inventory = machine(card("a", driver="535.104.05"), cuda="12.2")
    data: Path = tmp_path_factory.mktemp("data")
    return {each.name: each for each in probe_all(PYTHON, inventory, data)}


@pytest.mark.parametrize("name", ["torch", "jax", "mlx"])
def test_it_computes_on_the_cpu_and_on_nothing_else(probed: dict[str, Framework], name: str) -> None:
    framework = probed[name]
    assert framework.works == ("cpu",), framework
    assert framework.devices == ()
    assert framework.version


def test_what_it_would_need_for_cuda_is_told(probed: dict[str, Framework]) -> None:
    assert probed["torch"].problems == {"cuda": f"torch is a CPU build ({probed['torch'].version})"}
    assert probed["torch"].built_for == "cpu"
    assert probed["jax"].problems == {"cuda": "jax sees no CUDA device: jaxlib is a CPU build; install jax[cuda12]"}
    mlx = probed["mlx"]
    assert mlx.problems == {"cuda": f"mlx has no CUDA backend here ({mlx.version}); install mlx[cuda12]"}


def test_what_is_not_installed_is_not_told(probed: dict[str, Framework]) -> None:
    assert set(probed) == {"torch", "jax", "mlx"}
