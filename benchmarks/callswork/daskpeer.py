"""dask.distributed on processes of this machine. `python -m benchmarks.callswork.daskpeer SLOTS`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.callswork.serving import Function, serve

_LARGE_BYTES = 100_000  # what it warns of in a graph, and tells to scatter first


class Dask:
    """A scheduler and as many workers of one thread as there are slots."""

    def __init__(self, slots: int):
        import distributed

        self.version = distributed.__version__
        self._cluster = distributed.LocalCluster(
            n_workers=slots,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            silence_logs=logging.ERROR,
        )
        self._client = distributed.Client(self._cluster)

    def map(self, function: Function, items: Sequence[Any], batch: int) -> Sequence[Any]:
        """See `Contestant.map`."""
        if getattr(items[0], "nbytes", 0) >= _LARGE_BYTES:
            items = self._client.scatter(list(items), hash=False)
        return self._client.gather(self._client.map(function, items, pure=False))

    def one(self, function: Function, item: Any) -> Any:
        """See `Contestant.one`."""
        return self._client.submit(function, item, pure=False).result()

    def cpu_s(self) -> dict[str, float]:
        """See `Contestant.cpu_s`."""
        return {}

    def close(self) -> None:
        """See `Contestant.close`."""
        self._client.close()
        self._cluster.close()


if __name__ == "__main__":
    serve(lambda: Dask(int(sys.argv[1])))
