"""Thousands of small programs: jobs a second against bare `posix_spawn` and Ray, the control plane's CPU, its lag."""

from __future__ import annotations

import argparse
import heapq
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

import gpulayer as gl
from benchmarks.fleetwork.limit import measure
from benchmarks.fleetwork.ours import FleetFailed, Run, fleet
from benchmarks.report import Report, Row, median

_AGENTS, _SLOTS = 2, 16
_TRUE = shutil.which("true") or "/bin/true"  # by its whole path: how long PATH is says nothing about any of us
_ALIVE = 2  # of the limit: as many as there are cores here
_MANY_AGENTS, _MANY_SLOTS = 30, 4
_SETTLE_S, _LOOK_S, _BUSY_PERCENT = 15.0, 0.5, 8.0
_PEER_PYTHON = "GPULAYER_BENCH_RAY"  # an interpreter that has Ray, where this one has not


@dataclass
class Samples:
    """What the repeats measured."""

    ours: list[Run] = field(default_factory=list[Run])
    limit_s: list[float] = field(default_factory=list[float])
    peer_s: list[float] = field(default_factory=list[float])


class Peer:
    """Ray, in a process of its own."""

    def __init__(self, python: str):
        self._process = subprocess.Popen(
            [python, str(Path(__file__).with_name("fleetwork") / "peer.py"), str(_ALIVE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        word, _, self.version = self._line().partition(" ")
        if word != "ready":
            raise FleetFailed(f"Ray did not start: {word}")

    def _line(self) -> str:
        if self._process.stdout is None:
            raise FleetFailed("Ray's output is closed")
        return self._process.stdout.readline().strip()

    def run(self, argv: Sequence[str], count: int, folder: Path) -> float:
        """The seconds that it took."""
        if self._process.stdin is None:
            raise FleetFailed("Ray's input is closed")
        self._process.stdin.write(f"{count} {folder} {' '.join(argv)}\n")
        self._process.stdin.flush()
        answer = self._line()
        try:
            return float(answer)
        except ValueError:
            raise FleetFailed(f"Ray said {answer!r}") from None

    def close(self) -> None:
        """End it."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()


def _peer() -> Peer | None:
    python = os.environ.get(_PEER_PYTHON, sys.executable)
    there = subprocess.run([python, "-c", "import ray"], capture_output=True, check=False).returncode == 0
    return Peer(python) if there else None


def main(argv: list[str]) -> int:
    """Measure, print the table and the JSON object; 1 when a goal was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks fleet", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repeats, no fleet of 30 agents")
    parser.add_argument("--only", choices=["true", "work", "many"], help="one part only")
    options = parser.parse_args(argv)
    report = Report("fleet", packages=("ray", "psutil"))
    root = Path(tempfile.mkdtemp(prefix="gb", dir="/tmp"))
    try:
        if options.only in (None, "true", "work"):
            _two(report, root, 3 if options.quick else 5, options.only)
        if options.only == "many" or (options.only is None and not options.quick):
            _many(report, root)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return report.finish()


def _two(report: Report, root: Path, repeats: int, only: str | None) -> None:
    """Two agents: small programs, and some that take their time."""
    peer = _peer()
    try:
        with fleet(root / "two", agents=_AGENTS, slots=_SLOTS) as ours:
            if only != "work":
                samples = Samples()
                ours.run([gl.Command(argv=[_TRUE])] * 200)  # everything is imported, every file is in the cache
                for n in range(repeats):
                    settle()
                    samples.limit_s.append(measure([_TRUE], 2000, root / f"limit{n}", alive=_ALIVE))
                    settle()
                    samples.ours.append(ours.run([gl.Command(argv=[_TRUE])] * 2000))
                    if peer is not None:
                        settle()
                        samples.peer_s.append(peer.run([_TRUE], 2000, root / f"peer{n}"))
                _report_true(report, samples, peer.version if peer else "")
            if only != "true":
                for name, count, seconds in (("work_10ms", 500, "0.01"), ("work_600ms", 200, "0.6")):
                    run = ours.run([gl.Command(argv=["sleep", seconds])] * count)
                    ideal_s = count * float(seconds) / (_AGENTS * _SLOTS)
                    note = (
                        f"{count} in {run.seconds:.2f} s; {_AGENTS * _SLOTS} slots with nothing around: {ideal_s:.2f} s"
                    )
                    report.add(Row(name=f"fleet.{name}_per_s", value=count / run.seconds, unit="jobs/s", note=note))
    finally:
        if peer is not None:
            peer.close()


def _report_true(report: Report, samples: Samples, peer: str) -> None:
    ours = samples.ours
    rates = [run.jobs / run.seconds for run in ours]
    note = f"2,000 `true` by one submit_batch, {_AGENTS} agents with {_SLOTS} slots each"
    report.add(median("fleet.true_jobs_per_s", rates, "jobs/s", note=note))
    if samples.peer_s:
        ratios = [there / run.seconds for run, there in zip(ours, samples.peer_s, strict=True)]
        rate = 2000 / median("peer", samples.peer_s, "s").value
        note = f"Ray {peer} with subprocess, {_ALIVE} slots: {rate:.0f} jobs/s"
        report.add(median("fleet.true_jobs_per_s_vs_ray", ratios, "ratio", note=note, goal=">= 2.0"))
    ratios = [limit / run.seconds for run, limit in zip(ours, samples.limit_s, strict=True)]
    rate = 2000 / median("limit", samples.limit_s, "s").value
    note = f"bare posix_spawn, {_ALIVE} alive, two files each: {rate:.0f} jobs/s"
    report.add(median("fleet.true_vs_limit", ratios, "ratio", note=note, goal=">= 0.5"))
    cpu = [run.cpu_ms_per_job for run in ours]
    report.add(median("fleet.cpu_ms_per_job", cpu, "ms", note="control plane, all threads", goal="<= 0.15"))
    ingest = [run.ingest_s for run in ours]
    report.add(median("fleet.ingest_s", ingest, "s", note="2,000 jobs, committed, the client's view", goal="<= 0.1"))
    lag = [run.lag_p99_ms for run in ours]
    report.add(median("fleet.loop_lag_p99_ms", lag, "ms", goal="<= 15"))
    worst = max(run.lag_max_ms for run in ours)
    report.add(Row(name="fleet.loop_lag_max_ms", value=worst, unit="ms", note="of all runs", goal="<= 100"))


def _many(report: Report, root: Path) -> None:
    """Thirty agents: many tiny jobs, then a sweep of uneven lengths."""
    slots = _MANY_AGENTS * _MANY_SLOTS
    with fleet(root / "many", agents=_MANY_AGENTS, slots=_MANY_SLOTS) as ours:
        tiny = ours.run([gl.Command(argv=[_TRUE])] * 5000)
        note = f"5,000 `true` on {_MANY_AGENTS} agents with {_MANY_SLOTS} slots each; every record checked, none failed"
        report.add(Row(name="fleet.many_jobs_per_s", value=tiny.jobs / tiny.seconds, unit="jobs/s", note=note))
        source = random.Random(480)
        lengths = [round(source.uniform(1.0, 6.0), 2) for _ in range(480)]
        run = ours.run([gl.Command(argv=["sleep", str(length)]) for length in lengths])
        ideal_s = in_order(lengths, slots)
        bound_s = max(sum(lengths) / slots, max(lengths))
        note = (
            f"480 runs of 1 to 6 s in {run.seconds:.1f} s; in this order with nothing around {ideal_s:.1f} s, "
            f"in the best order {bound_s:.1f} s"
        )
        ratio = run.seconds / ideal_s
        report.add(Row(name="fleet.sweep_makespan_ratio", value=ratio, unit="ratio", note=note, goal="<= 1.15"))
        lengths.sort(reverse=True)
        run = ours.run([gl.Command(argv=["sleep", str(length)]) for length in lengths])
        note = f"the same, the longest first, against the best possible: {run.seconds:.1f} of {bound_s:.1f} s"
        ratio = run.seconds / bound_s
        report.add(Row(name="fleet.sweep_longest_first_ratio", value=ratio, unit="ratio", note=note, goal="<= 1.15"))


def settle() -> None:
    """Wait until the machine does little: what one of them leaves to be done is not the next one's to pay."""
    deadline = time.monotonic() + _SETTLE_S
    while psutil.cpu_percent(_LOOK_S) > _BUSY_PERCENT and time.monotonic() < deadline:
        pass


def in_order(lengths: Sequence[float], slots: int) -> float:
    """The makespan of jobs that are taken in their order by slots that lose no time, seconds."""
    free_at = [0.0] * slots
    for length in lengths:
        heapq.heappush(free_at, heapq.heappop(free_at) + length)
    return max(free_at)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
