"""A command line beside the shared deployment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.deployment import Deployment
from tests.support.terminal import Cli
from tests.support.way import Way


@pytest.fixture
def cli(deployment: Deployment, tmp_path: Path) -> Cli:
    """`gpulayer` in a folder of the test's own."""
    return Cli(tmp_path, deployment.env)


@pytest.fixture
def way(deployment: Deployment) -> Iterator[Way]:
    """A way to the shared deployment that can be held up."""
    with Way(deployment.plane.endpoint) as way:
        yield way
