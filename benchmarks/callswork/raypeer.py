"""Ray, one `remote` per call, as its documentation begins. `python -m benchmarks.callswork.raypeer SLOTS`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.callswork.serving import Function, serve


class Ray:
    """A Ray instance of its own on this machine."""

    def __init__(self, slots: int):
        import ray

        self._ray = ray
        self.version = ray.__version__
        ray.init(num_cpus=slots, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
        self._remote: dict[Function, Any] = {}

    def map(self, function: Function, items: Sequence[Any], batch: int) -> Sequence[Any]:
        """See `Contestant.map`."""
        remote = self._of(function)
        return self._ray.get([remote.remote(item) for item in items])

    def one(self, function: Function, item: Any) -> Any:
        """See `Contestant.one`."""
        return self._ray.get(self._of(function).remote(item))

    def _of(self, function: Function) -> Any:
        if function not in self._remote:
            self._remote[function] = self._ray.remote(num_cpus=1)(function)
        return self._remote[function]

    def cpu_s(self) -> dict[str, float]:
        """See `Contestant.cpu_s`."""
        return {}

    def close(self) -> None:
        """See `Contestant.close`."""
        self._ray.shutdown()


if __name__ == "__main__":
    serve(lambda: Ray(int(sys.argv[1])))
