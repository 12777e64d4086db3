"""What the tests of the worker's parts share."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulayer_worker.link_events import Began
from tests.support.link import Wire, assign


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose path leaves room for a socket's name: such paths are limited."""
    folder = Path(tempfile.mkdtemp(prefix="gu", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


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
