"""Ours. `python -m benchmarks.callswork.ours WORKER`: the folder of its only worker; GPULAYER_DATA is set."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

import gpulayer as gl
from benchmarks.callswork.serving import Function, serve
from gpulayer.protocol.endpoint import data_folder, read_endpoint


class Ours:
    """The control plane of GPULAYER_DATA, started where none listens there, and the workers that it has."""

    version = gl.__version__

    def __init__(self, worker: Path):
        """`worker`: the data folder of its only worker."""
        self._worker = worker
        self._remote: dict[Function, Any] = {}

    def map(self, function: Function, items: Sequence[Any], batch: int) -> Sequence[Any]:
        """See `Contestant.map`."""
        return list(self._of(function).map(items))

    def one(self, function: Function, item: Any) -> Any:
        """See `Contestant.one`."""
        return self._of(function)(item)

    def _of(self, function: Function) -> Any:
        if function not in self._remote:
            self._remote[function] = gl.remote(function)
        return self._remote[function]

    def cpu_s(self) -> dict[str, float]:
        """Of the control plane, the worker (keeper and agent), its runners, and this process as the client."""
        spent = {"control plane": 0.0, "worker": 0.0, "runners": 0.0, "client": time.process_time()}
        endpoint = read_endpoint(data_folder())
        if endpoint is None or not (self._worker / "keeper.json").exists():
            return spent  # it is started with the first call
        spent["control plane"] = _cpu_s(psutil.Process(endpoint.pid))
        keeper = psutil.Process(json.loads((self._worker / "keeper.json").read_bytes())["pid"])
        spent["worker"] = _cpu_s(keeper)
        for process in keeper.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                spent["worker" if "agent" in process.cmdline() else "runners"] += _cpu_s(process)
        return spent

    def close(self) -> None:
        """See `Contestant.close`. The control plane and its workers are for the benchmark to end."""


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


if __name__ == "__main__":
    serve(lambda: Ours(Path(sys.argv[1])))
