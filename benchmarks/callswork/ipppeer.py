"""ipyparallel, load-balanced over engines of this machine. `python -m benchmarks.callswork.ipppeer SLOTS`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.callswork.serving import Function, serve


class IPyParallel:
    """A controller and an engine per slot."""

    def __init__(self, slots: int):
        import ipyparallel

        self.version = ipyparallel.__version__
        self._cluster = ipyparallel.Cluster(n=slots, engines="local", log_level=logging.ERROR)
        self._client = self._cluster.start_and_connect_sync(activate=False)
        self._view = self._client.load_balanced_view()

    def map(self, function: Function, items: Sequence[Any], batch: int) -> Sequence[Any]:
        """See `Contestant.map`."""
        return list(self._view.map_sync(function, items))

    def one(self, function: Function, item: Any) -> Any:
        """See `Contestant.one`."""
        return self._view.apply_sync(function, item)

    def cpu_s(self) -> dict[str, float]:
        """See `Contestant.cpu_s`."""
        return {}

    def close(self) -> None:
        """See `Contestant.close`."""
        self._client.close()
        self._cluster.stop_cluster_sync()


if __name__ == "__main__":
    serve(lambda: IPyParallel(int(sys.argv[1])))
