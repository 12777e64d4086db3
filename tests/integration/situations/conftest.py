"""Command lines beside the deployments of the situations."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.deployment import Deployment
from tests.support.terminal import Cli


@pytest.fixture
def cli(deployment: Deployment, tmp_path: Path) -> Cli:
    """`gpulayer` beside the shared deployment, in a folder of the test's own."""
    return Cli(tmp_path, deployment.env)
