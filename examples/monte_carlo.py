"""Pi by throwing darts, on every slot that is free: `python examples/monte_carlo.py [CALLS] [DARTS]`.

With nothing running, a control plane and a worker are started on this machine; both end when nobody needs them.
"""

from __future__ import annotations

import math
import random
import sys

import gpulayer as gl


@gl.remote
def inside(seed: int, darts: int) -> int:
    """How many of so many darts, thrown at the unit square, land in the quarter of a circle."""
    throw = random.Random(seed).random
    return sum(throw() ** 2 + throw() ** 2 <= 1.0 for _ in range(darts))


def main(calls: int = 40, darts: int = 200_000) -> float:
    """Estimate pi; each call throws darts of its own."""
    thrown = hits = 0
    for count in inside.map(range(calls), [darts] * calls, ordered=False):  # whatever is there first
        hits, thrown = hits + count, thrown + darts
    estimate = 4 * hits / thrown
    print(f"pi is about {estimate:.5f} after {thrown:,} darts in {calls} calls; off by {abs(estimate - math.pi):.5f}")
    return estimate


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
