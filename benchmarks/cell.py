"""A cell on a warm local worker against the same cell in a local kernel: latency, output, memory, idle cost."""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks import resync as syncs
from benchmarks.home import Home
from benchmarks.kernel import CellFailed, LocalKernel, Timing, as_magic
from benchmarks.memory import MemoryWatch, idle_percent
from benchmarks.report import Report, Row, median
from gpulayer.client.api import Api

_FILES = 200
_LINES = 20_000
_FLOOD_MB = 200
_STALL_S = 6.0
_SESSION = "--session bench"

_PRINT_LINES = f"for number in range({_LINES}):\n    print(f'line {{number}}')"
_FLOOD = f"for number in range({_FLOOD_MB * 1000}):\n    print(f'{{number:09d}} '.ljust(999, 'x'))\nprint('the end')"


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How often each is measured."""

    warmups: int = 30
    cells: int = 240
    first_lines: int = 20
    lines: int = 9
    fresh: int = 10
    idle_s: float = 20.0
    joins: int = 3
    colds: int = 3
    scans: int = 200
    firsts: int = 5
    resyncs: int = 25


QUICK = Sizes(
    warmups=10, cells=60, first_lines=5, lines=3, fresh=3, idle_s=5.0, joins=1, colds=1, scans=50, firsts=2, resyncs=9
)


@dataclass(frozen=True, kw_only=True)
class Bench:
    """One installation, a notebook kernel with our extension, and a stock kernel beside it."""

    home: Home
    ours: LocalKernel
    stock: LocalKernel
    sizes: Sizes
    report: Report

    def session(self, body: str, line: str = _SESSION) -> Timing:
        """Run a cell by our magic."""
        return self.ours.run(as_magic(body, line))


def main(argv: list[str]) -> int:
    """Measure, print the table and the JSON object; 1 when a goal was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks cell", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--only", metavar="PART", choices=list(PARTS), action="append", help="only this part")
    options = parser.parse_args(argv)
    sizes = QUICK if options.quick else Sizes()
    report = Report("cell", packages=("ipykernel", "ipython", "jupyter_client", "pyzmq", "psutil"))
    parts = [PARTS[name] for name in options.only or PARTS]
    colds = [_cold_s() for _ in range(sizes.colds - 1)]
    with Home(files=_FILES) as home:
        env = home.env()
        with LocalKernel(folder=home.notebooks, env=env) as ours, LocalKernel(folder=home.notebooks, env=env) as stock:
            colds.append(_first_cell(ours))
            for part in parts:
                part(Bench(home=home, ours=ours, stock=stock, sizes=sizes, report=report))
    report.add(median("cell.cold_s", colds, "s", note="nothing running, to the first output"))
    return report.finish()


# ---------------------------------------------------------------- from nothing


def _cold_s() -> float:
    with Home(files=_FILES) as home, LocalKernel(folder=home.notebooks, env=home.env()) as ours:
        return _first_cell(ours)


def _first_cell(ours: LocalKernel) -> float:
    """Seconds to the first output of the first cell: it starts a control plane, a worker and a kernel."""
    ours.run("%load_ext gpulayer")
    timing = ours.run(as_magic("print('first')", _SESSION))
    if timing.text() != "first\n" or timing.first_output_s is None:
        raise CellFailed(f"the first cell printed {timing.text()!r}")
    return timing.first_output_s


# ---------------------------------------------------------------- small cells


def overhead(bench: Bench) -> None:
    """`1+1` in a warm session, beside the same in a local kernel, by turns."""
    for _ in range(bench.sizes.warmups):
        _check_two(bench.session("1+1"))
        _check_two(bench.stock.run("1+1"))
    ours_ms: list[float] = []
    stock_ms: list[float] = []
    for _ in range(bench.sizes.cells):
        ours_ms.append(1000 * _check_two(bench.session("1+1")).total_s)
        stock_ms.append(1000 * _check_two(bench.stock.run("1+1")).total_s)
    base = statistics.median(stock_ms)
    over = [value - base for value in ours_ms]
    tenth = sorted(over)[len(over) // 10], sorted(over)[9 * len(over) // 10]
    note = f"{len(over)} cells; local kernel {base:.2f} ms; middle 80 % {tenth[0]:.1f} to {tenth[1]:.1f}"
    bench.report.add(median("cell.overhead_ms", over, "ms", note=note, goal="<= 8"))


def _check_two(timing: Timing) -> Timing:
    results = [content["data"]["text/plain"] for kind, content in timing.outputs if kind == "execute_result"]
    if results != ["2"]:
        raise CellFailed(f"1+1 gave {results}")
    return timing


def first_line(bench: Bench) -> None:
    """From the cell's start to its first line, while the cell goes on."""
    body = "print('x'); import time; time.sleep(0.5)"
    ours_ms = [1000 * (bench.session(body).first_output_s or 9.9) for _ in range(bench.sizes.first_lines)]
    stock_ms = [1000 * (bench.stock.run(body).first_output_s or 9.9) for _ in range(3)]
    note = f"local kernel {statistics.median(stock_ms):.0f} ms"
    bench.report.add(median("cell.first_line_ms", ours_ms, "ms", note=note, goal="<= 40"))


def fresh(bench: Bench) -> None:
    """`1+1` with fresh state, one cell after the other."""
    base = statistics.median(_check_two(bench.stock.run("1+1")).total_s for _ in range(10))
    over = [1000 * (_check_two(bench.session("1+1", "")).total_s - base) for _ in range(bench.sizes.fresh)]
    note = "ten in a row; goal 60 comes with the zygote"
    bench.report.add(median("cell.fresh_overhead_ms", over, "ms", note=note))


# ---------------------------------------------------------------- much output


def lines(bench: Bench) -> None:
    """Many short lines; each has to arrive once, in order."""
    wanted = "".join(f"line {number}\n" for number in range(_LINES))
    ratios: list[float] = []
    for _ in range(bench.sizes.lines):
        ours, stock = bench.session(_PRINT_LINES, f"{_SESSION} --max-output 1MB"), bench.stock.run(_PRINT_LINES)
        for who, timing in (("ours", ours), ("the local kernel's", stock)):
            if timing.text() != wanted:
                raise CellFailed(f"{who} lines did not arrive once and in order ({len(timing.text())} characters)")
        ratios.append(ours.total_s / stock.total_s)
    note = f"{_LINES} lines: ours {ours.total_s:.2f} s, local kernel {stock.total_s:.2f} s"
    bench.report.add(median("cell.lines_ratio", ratios, "", note=note, goal="<= 1.2"))


def flood(bench: Bench) -> None:
    """200 MB printed, read by the notebook at once, and again by one that stands still for a while."""
    _settle(bench)
    watched = {**bench.home.processes(), "notebook kernel": psutil.Process(bench.ours.pid)}
    with MemoryWatch(watched) as free:
        timing = _checked_flood(bench.session(_FLOOD))
    stalled_kernel = threading.Thread(target=_stall, args=(bench.ours.pid, timing.total_s / 3))
    with MemoryWatch(watched) as stalled:
        stalled_kernel.start()
        slow = _checked_flood(bench.session(_FLOOD))
        stalled_kernel.join()
    grown = {name: max(value, stalled.growth_mb[name]) for name, value in free.growth_mb.items()}
    pairs = [f"{name} {value:.0f} / {stalled.growth_mb[name]:.0f}" for name, value in free.growth_mb.items()]
    note = f"read at once / stalled: {', '.join(pairs)}"
    bench.report.add(Row(name="cell.flood_growth_mb", value=max(grown.values()), unit="MB", note=note, goal="<= 32"))
    local_s = bench.stock.run(_FLOOD).total_s
    note = (
        f"local kernel {_FLOOD_MB / local_s:.0f} MB/s; {slow.total_s:.1f} s with a client stalled for {_STALL_S:.0f} s"
    )
    bench.report.add(Row(name="cell.flood_mb_per_s", value=_FLOOD_MB / timing.total_s, unit="MB/s", note=note))


def _checked_flood(timing: Timing) -> Timing:
    text = timing.text()
    if not text.startswith("000000000 x") or not text.endswith("x\nthe end\n") or "left out here" not in text:
        raise CellFailed(f"the flood's head or tail is missing: {text[:20]!r} … {text[-20:]!r}")
    return timing


def _stall(pid: int, after_s: float) -> None:
    """Hold a process for a while in the middle of what it does."""
    time.sleep(after_s)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(_STALL_S)  # the stall itself
    os.kill(pid, signal.SIGCONT)


# ---------------------------------------------------------------- the worker itself


def idle(bench: Bench) -> None:
    """What a worker with nothing to do costs."""
    _settle(bench)
    worker = {name: each for name, each in bench.home.processes().items() if name != "control plane"}
    used = idle_percent(worker, bench.sizes.idle_s)
    note = ", ".join(f"{name} {value:.2f}" for name, value in used.items())
    bench.report.add(
        Row(name="worker.idle_cpu_pct", value=sum(used.values()), unit="% of a core", note=note, goal="<= 1")
    )
    held = {name: each.memory_info().rss / 1e6 for name, each in worker.items()}
    note = ", ".join(f"{name} {value:.0f}" for name, value in held.items())
    bench.report.add(Row(name="worker.idle_rss_mb", value=sum(held.values()), unit="MB", note=note))


def _settle(bench: Bench) -> None:
    """Let end what the parts before began, such as a new warm kernel; at most 20 seconds."""
    for _ in range(10):
        if sum(idle_percent(bench.home.processes(), 2.0).values()) < 1.5:
            return


def join(bench: Bench) -> None:
    """From the start of `gpulayer-worker join` until the control plane counts it as connected."""
    joins_s = [_join_s(bench.home, f"joiner{number}") for number in range(bench.sizes.joins)]
    bench.report.add(median("worker.join_s", joins_s, "s", note="no NVIDIA tools here", goal="<= 3"))


def _join_s(home: Home, name: str) -> float:
    api = Api(home.endpoint)
    command = [sys.executable, "-m", "gpulayer_worker", "join", "--control-plane", str(home.data), "--name", name]
    data = home.root / name
    with (home.root / f"{name}.log").open("wb") as log:
        start = time.perf_counter()
        process = subprocess.Popen([*command, "--data", str(data)], env=home.env(), stdout=log, stderr=log)
    try:
        return _until(lambda: any(w.name == name and w.connected for w in api.workers()), process, log_of=data) - start
    finally:
        process.terminate()
        process.wait()


def _until(ready: Callable[[], bool], process: subprocess.Popen[bytes], log_of: Path) -> float:
    """The time at which `ready` was seen to hold."""
    while not ready():
        if process.poll() is not None:
            raise CellFailed(f"the worker of {log_of} ended with {process.returncode}")
        time.sleep(0.01)  # HTTP tells no news: the figure is right to this much
    return time.perf_counter()


# ---------------------------------------------------------------- the files


def resync(bench: Bench) -> None:
    """The files' way into the workspace: unchanged, one of 2,000 changed, all new; the last two against rsync -az."""
    _settle(bench)
    scans_ms = syncs.unchanged_scan_ms(bench.home.notebooks, bench.sizes.scans, lambda: time.sleep(0.01))
    bench.report.add(median("cell.scan_ms", scans_ms, "ms", note=f"{_FILES} files, nothing changed"))
    folder = bench.home.root / "sync"
    folder.mkdir()
    sizes = bench.sizes
    syncs.measure(
        bench.report,
        folder,
        bench.home.endpoint,
        bench.home.data / "blobs",
        firsts=sizes.firsts,
        resyncs=sizes.resyncs,
    )


PARTS: dict[str, Callable[[Bench], None]] = {
    "overhead": overhead,
    "first_line": first_line,
    "lines": lines,
    "flood": flood,
    "fresh": fresh,
    "idle": idle,
    "join": join,
    "resync": resync,
}
