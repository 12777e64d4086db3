"""A control plane that was killed comes back to a long history: CPU until it listens, memory, against a short one."""

from __future__ import annotations

import argparse
import getpass
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.report import Report, Row, median
from gpulayer.client.api import Api
from gpulayer.protocol.endpoint import read_endpoint
from gpulayer.protocol.types import CellSpec, Inventory, JobSpec, Outcome, State
from gpulayer_server.core.state import Attempt, Job, JobEnd, Session, Task, Worker
from gpulayer_server.store.database import Store
from gpulayer_server.store.rows import Op, encode

_SHORT, _LONG = 1_000, 100_000
_BATCH = 1_000
_CELLS_A_SESSION = 20
_LOST_EVERY = 1_000
_START_S = 60.0


class RestartFailed(RuntimeError):
    """The control plane did not come back, or not with its history."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """One start, from the process's begin until it listens."""

    cpu_s: float
    ready_s: float
    rss_mb: float


def main(argv: list[str]) -> int:
    """Measure, print the table and the JSON object; 1 when a goal was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks restart", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--make", nargs=2, metavar=("FOLDER", "JOBS"), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.make:
        _make_and_die(Path(options.make[0]), int(options.make[1]))
    report = Report("restart", packages=("psutil",))
    root = Path(tempfile.mkdtemp(prefix="gb", dir="/tmp"))
    try:
        starts = _measure(root, 3 if options.quick else 7)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    short, long = starts[_SHORT], starts[_LONG]
    base_s = median("base", [each.cpu_s for each in short], "s").value
    note = f"killed with {_LONG:,} finished jobs; with {_SHORT:,}: {base_s:.3f} s"
    report.add(median("restart.cpu_s", [each.cpu_s for each in long], "s", note=note, goal="<= 1.0"))
    report.add(median("restart.ready_s", [each.ready_s for each in long], "s", note="from its start until it listens"))
    report.add(_growth(short, long))
    return report.finish()


def _growth(short: list[Start], long: list[Start]) -> Row:
    ours = median("long", [each.rss_mb for each in long], "MB").value
    base = median("short", [each.rss_mb for each in short], "MB").value
    note = f"resident once it listens: {ours:.1f} MB with {_LONG:,} jobs, {base:.1f} MB with {_SHORT:,}"
    return Row(name="restart.rss_growth_mb", value=ours - base, unit="MB", note=note)


def _measure(root: Path, repeats: int) -> dict[int, list[Start]]:
    """Starts with either history, by turns."""
    starts: dict[int, list[Start]] = {_SHORT: [], _LONG: []}
    for jobs in starts:
        here = Path(__file__).parents[1]
        command = [sys.executable, "-m", "benchmarks", "restart", "--make", str(root / str(jobs)), str(jobs)]
        ended = subprocess.run(command, cwd=here, check=False)
        if ended.returncode != -signal.SIGKILL:
            raise RestartFailed(f"the history of {jobs} jobs was not made: exit code {ended.returncode}")
    for _ in range(repeats):
        for jobs, found in starts.items():
            found.append(_start_and_kill(root / str(jobs), jobs))
    return starts


def _start_and_kill(data: Path, jobs: int) -> Start:
    command = [sys.executable, "-m", "gpulayer_server", "--data", str(data), "--announce"]
    began = time.monotonic()
    process = psutil.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        if not select.select([process.stdout], [], [], _START_S)[0] or not process.stdout.readline():
            raise RestartFailed(f"the control plane did not listen within {_START_S:.0f} s")
        ready_s = time.monotonic() - began
        times, memory = process.cpu_times(), process.memory_info()
        _check(data, jobs)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    return Start(cpu_s=times.user + times.system, ready_s=ready_s, rss_mb=memory.rss / 1e6)


def _check(data: Path, jobs: int) -> None:
    """The whole history is there."""
    endpoint = read_endpoint(data)
    newest = Api(endpoint).jobs(limit=1)[0].id if endpoint is not None else "none"
    if newest != f"j{jobs - 1}":
        raise RestartFailed(f"the newest job is {newest}, of {jobs}")


# ---------------------------------------------------------------- a history


def _make_and_die(data: Path, jobs: int) -> None:
    """As a control plane does that is killed: its last commits are in the write-ahead log."""
    data.mkdir(parents=True)
    make_history(data / "store.db", jobs)
    os.kill(os.getpid(), signal.SIGKILL)


def make_history(path: Path, jobs: int) -> Store:
    """A store that holds so many finished cells: half of them in sessions that ended, some of them lost."""
    store = Store(path)
    inventory = Inventory(host="h", os="linux", arch="x86_64", cpu_cores=2, ram_bytes=8_000_000_000, python="3.11")
    worker = Worker(id="w", name="alpha", slots=2, local=False, inventory=inventory, last_seen_at=0.0)
    store.commit([[encode(worker)]])
    for first in range(0, jobs, _BATCH):
        store.commit(_cell(number) for number in range(first, min(jobs, first + _BATCH)))
    return store


def _cell(number: int) -> Iterator[Op]:
    at = 1_700_000_000.0 + number
    session = f"s-1-{number // _CELLS_A_SESSION}" if number % 2 else None
    lost = number % _LOST_EVERY == 0
    attempt = Attempt(
        id=f"j{number}-1-{number}",
        task=f"j{number}/0",
        n=number + 1,
        index=0,
        number=1,
        worker="w",
        session=session,
        devices=(),
        assigned_at=at,
        started_at=at,
        ended_at=at + 1.0,
        end_offset=None if lost else 900,
        over=True,
        released=True,
    )
    state = State.FAILED if lost else State.SUCCEEDED
    outcome = Outcome(state=state, peak_rss_bytes=100_000_000, problem="out of reach for 60 s" if lost else "")
    task = Task(
        id=attempt.task,
        job=f"j{number}",
        n=attempt.n,
        index=0,
        state=state,
        attempt=attempt,
        attempts=1,
        outcome=outcome,
        ended_at=at + 1.0,
    )
    spec = JobSpec(cell=CellSpec(code="import train\ntrain.run(epochs=3)\n" * 8, bundle="0" * 64), name="cell, a.ipynb")
    job = Job(id=task.job, n=number + 1, owner=_owner(), key=f"k{number}", payload_hash="0" * 64, spec=spec,
              submitted_at=at)  # fmt: skip
    end = JobEnd(id=job.id, n=job.n, state=state, ended_at=at + 1.0)
    yield from (encode(job), encode(task), encode(attempt), encode(end))
    if number % _CELLS_A_SESSION == 1 and session is not None:
        yield encode(
            Session(
                id=session,
                name=f"train-{number // _CELLS_A_SESSION % 100}",
                owner=_owner(),
                worker="w",
                devices=(),
                opened_at=at,
                idle_timeout_s=1800.0,
                used=True,
                closing=True,
                closed=True,
                reason="idle for 30 min",
            )
        )


def _owner() -> str:
    """Whose jobs these are: who asks for them."""
    return getpass.getuser()
