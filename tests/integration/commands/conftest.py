"""A control plane and a worker for commands."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.commands import Bench
from tests.support.deployment import Deployment


@pytest.fixture(scope="module")
def deployment() -> Iterator[Deployment]:
    with Deployment(env={"GPULAYER_EMBEDDED": "0"}) as deployment:
        deployment.plane.start()
        deployment.worker("alpha", slots=4, warm=0)
        yield deployment


@pytest.fixture
def bench(deployment: Deployment) -> Iterator[Bench]:
    bench = Bench(deployment, deployment.workers["alpha"])
    yield bench
    bench.until_clean()
