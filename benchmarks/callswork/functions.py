"""What everybody's workers call. Copied into a project folder of its own, and imported there by its name."""

from __future__ import annotations

import time
from typing import Any


def noop(value: Any) -> Any:
    """The cost of a call and nothing else."""
    return value


def plus_one(array: Any) -> Any:
    """An array of the same size, with nothing in it that anybody has seen before."""
    return array + 1


def nap(seconds: float) -> float:
    """A call that takes its time and no CPU."""
    time.sleep(seconds)
    return seconds
