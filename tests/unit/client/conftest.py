"""A control plane's side of a client's socket, played by the tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.clientplane import Plane


@pytest.fixture
def plane() -> Iterator[Plane]:
    plane = Plane()
    yield plane
    plane.close()


@pytest.fixture
def until() -> Callable[..., object]:
    """Wait for a condition."""
    from tests.support.processes import until

    return until
