"""The examples with functions, run as a person runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.deployment import Deployment
from tests.support.processes import PATIENCE_S, until

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
FRAMEWORKS = os.environ.get("GPULAYER_TEST_FRAMEWORKS", "")


def run(deployment: Deployment, name: str, *arguments: str, code: int = 0) -> str:
    """What an example prints; its exit code is looked at."""
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments]
    env = deployment.env | {"GPULAYER_EMBEDDED": "0"}
    done = subprocess.run(
        command, cwd=deployment.folder, env=env, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def test_a_map_estimates_pi(deployment: Deployment) -> None:
    said = run(deployment, "monte_carlo", "8", "50000")
    assert said.startswith("pi is about 3.1")
    assert "after 400,000 darts in 8 calls" in said


def test_a_classifier_that_stays_loaded_learns(deployment: Deployment) -> None:
    said = run(deployment, "text_classifier").splitlines()
    assert [line.split()[0] for line in said] == ["good", "bad", "bad", "learnt:", "good"]
    assert said[3] == "learnt: 9 examples now"


def test_where_no_machine_has_mlx_it_says_of_each_why(deployment: Deployment) -> None:
    said = run(deployment, "mlx_matmul", "64", code=1)
    assert "alpha: needs 1 usable mps device" in said
    assert "framework 'mlx' not installed" in said


@pytest.fixture
def studio(deployment: Deployment, tmp_path: Path) -> Iterator[str]:
    """The name of a machine with MLX; it goes once nothing of ours is on it."""
    worker = deployment.worker("studio", slots=1, warm=0, python=str(_with_mlx_alone(tmp_path / "mlx")))
    until(lambda: _has_mlx(deployment, worker.name), lambda: f"mlx on studio:\n{worker.log}")
    yield worker.name
    for job in deployment.api.jobs(limit=50):
        if not job.terminal:
            deployment.api.cancel(job.id)
    until(lambda: deployment.slots_free(worker.name) == 1, "the runner to end")


@pytest.mark.skipif(
    not FRAMEWORKS, reason="GPULAYER_TEST_FRAMEWORKS names no interpreter with mlx; `make test` makes one"
)
def test_mlx_multiplies_on_the_machine_that_has_it(deployment: Deployment, studio: str) -> None:
    assert _has_mlx(deployment, studio)
    lines = run(deployment, "mlx_matmul", "--cpu", "32", "64").splitlines()
    assert [line.split()[0] for line in lines] == ["32", "64"]
    assert all("GFLOP/s" in line for line in lines)


def _with_mlx_alone(folder: Path) -> Path:
    """An interpreter with MLX and without the others, each of which a worker would try for a while."""
    subprocess.run([FRAMEWORKS, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=PATIENCE_S)
    python = folder / "bin" / "python"
    (there,) = (Path(FRAMEWORKS).parents[1] / "lib").glob("python*/site-packages")
    (here,) = (folder / "lib").glob("python*/site-packages")
    for package in there.glob("mlx*"):
        (here / package.name).symlink_to(package)
    return python


def _has_mlx(deployment: Deployment, name: str) -> bool:
    worker = next(each for each in deployment.api.workers() if each.name == name)
    return any(each.name == "mlx" and "cpu" in each.works for each in worker.inventory.frameworks)
