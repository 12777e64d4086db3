"""Watching what processes hold in memory while something runs."""

from __future__ import annotations

import contextlib
import threading
import time
from types import TracebackType

import psutil

_INTERVAL_S = 0.05


class MemoryWatch:
    """Samples the resident memory of processes 20 times a second, from `with` on. `growth` says how far each grew."""

    def __init__(self, processes: dict[str, psutil.Process]):
        self._processes = dict(processes)
        self._before = {name: process.memory_info().rss for name, process in processes.items()}
        self._most = dict(self._before)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.samples = 0

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            for name, process in list(self._processes.items()):
                try:
                    self._most[name] = max(self._most[name], process.memory_info().rss)
                except psutil.NoSuchProcess:
                    del self._processes[name]
            self.samples += 1
            if self._ended.wait(_INTERVAL_S):
                return

    @property
    def growth_mb(self) -> dict[str, float]:
        """By name: the most that was held, less what was held before."""
        return {name: (self._most[name] - self._before[name]) / 1e6 for name in self._before}


def cpu_s(processes: dict[str, psutil.Process]) -> dict[str, float]:
    """The processor time that each has used so far, seconds; of those that are still there."""
    used: dict[str, float] = {}
    for name, process in processes.items():
        with contextlib.suppress(psutil.NoSuchProcess):
            used[name] = sum(process.cpu_times()[:2])
    return used


def idle_percent(processes: dict[str, psutil.Process], seconds: float) -> dict[str, float]:
    """Of one core, while nothing is asked of them for `seconds`."""
    before, start = cpu_s(processes), time.perf_counter()
    time.sleep(seconds)  # a rate over a span: there is nothing to await
    took_s = time.perf_counter() - start
    return {name: 100 * (after - before[name]) / took_s for name, after in cpu_s(processes).items() if name in before}
