"""What the tests of the worker's link share."""

from __future__ import annotations

import pytest

from gpulayer_worker.link_events import Began
from tests.support.link import Wire, assign


@pytest.fixture
def wire() -> Wire:
    """A link that is welcomed and holds nothing."""
    wire = Wire()
    wire.welcome()
    return wire


@pytest.fixture
def one(wire: Wire) -> Wire:
    """The same, with attempt 'a' begun."""
    wire.hear(assign())
    wire.do(Began(attempt="a"))
    return wire
