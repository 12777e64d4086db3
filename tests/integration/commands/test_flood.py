"""A program that writes 200 MB: nobody grows by it, and the worker's disk does not either."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

from gpulayer.protocol.types import State
from tests.support.commands import Bench
from tests.support.processes import until

SIZE_BYTES = 200_000_000
GROWTH_KB = 48 * 1024


def rss_kb(pid: int) -> int:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1])


def used_bytes(folder: Path) -> int:
    """What the files in a folder take on the disk."""
    total = 0
    for path in folder.glob("*"):
        try:
            total += path.stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return total


def test_nobody_grows_with_what_a_program_writes(bench: Bench) -> None:
    pids = [bench.worker.keeper_pid, bench.worker.agent_pid, bench.deployment.plane.pid]
    before = [rss_kb(pid) for pid in pids]
    job = bench.shell(f"head -c {SIZE_BYTES} /dev/zero | tr '\\0' 'x'; sleep 1; echo end >&2")
    attempt = until(lambda: bench.view(job).attempt, "the job to have a worker")
    most, least_left, over = list(before), [SIZE_BYTES], threading.Event()

    def measure() -> None:
        folder = bench.worker.data / "attempts" / attempt
        while not over.wait(0.05):
            for number, pid in enumerate(pids):
                most[number] = max(most[number], rss_kb(pid))
            with contextlib.suppress(FileNotFoundError):  # before it begins, and once all of it is sent
                if (folder / "out").stat().st_size == SIZE_BYTES:
                    least_left[0] = min(least_left[0], used_bytes(folder))

    measuring = threading.Thread(target=measure)
    measuring.start()
    try:
        view = bench.done(job)
    finally:
        over.set()
        measuring.join()
    assert view.state is State.SUCCEEDED
    assert view.end_offset is not None
    assert SIZE_BYTES < view.end_offset < SIZE_BYTES * 1.01
    growth = [after - earlier for earlier, after in zip(before, most, strict=True)]
    assert max(growth) < GROWTH_KB, f"keeper, agent, control plane grew by {growth} KB"
    assert least_left[0] < SIZE_BYTES / 4  # what was acknowledged is punched out while it runs
    assert bench.log(job, "stdout", tail="100000") == b"x" * 100_000
    assert bench.log(job, "stderr") == b"end\n"
