"""The limit: `ProcessPoolExecutor`, which keeps nothing on disk. `python -m benchmarks.callswork.pool SLOTS`."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from benchmarks.callswork.serving import Function, serve


class Pool:
    """A pool of processes."""

    version = platform.python_version()

    def __init__(self, slots: int):
        self._pool = ProcessPoolExecutor(slots)

    def map(self, function: Function, items: Sequence[Any], batch: int) -> Sequence[Any]:
        """See `Contestant.map`."""
        return list(self._pool.map(function, items, chunksize=batch))

    def one(self, function: Function, item: Any) -> Any:
        """See `Contestant.one`."""
        return self._pool.submit(function, item).result()

    def cpu_s(self) -> dict[str, float]:
        """See `Contestant.cpu_s`."""
        return {}

    def close(self) -> None:
        """See `Contestant.close`."""
        self._pool.shutdown()


if __name__ == "__main__":
    serve(lambda: Pool(int(sys.argv[1])))
