"""Functions: small calls, one warm call, arrays, cold start; against a process pool, Ray, Dask and ipyparallel."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.callswork import joined
from benchmarks.callswork.cold import compile_ours
from benchmarks.callswork.figures import OURS, PEERS, POOL, POOL64, TCP, Samples, beside, rows, uneven
from benchmarks.callswork.rival import CallsFailed, Rival
from benchmarks.home import Home
from benchmarks.report import Report

_SLOTS = 2
_PEER_PYTHON = "GPULAYER_BENCH_PEERS"  # an interpreter that has the peers, where this one has not
_HERE = Path(__file__).parent / "callswork"
_PROGRAMS = {OURS: "ours", TCP: "ours", POOL: "pool", "Ray": "raypeer", "Dask": "daskpeer", "ipyparallel": "ipppeer"}
_SLOW = (PEERS["distributed"], PEERS["ipyparallel"])  # no goal is set against them: they are measured less often
_COLD_S = 120.0
WARM: dict[str, dict[str, Any]] = {
    "noops": {"do": "noops", "count": 50},
    "singles": {"do": "singles", "count": 5},
    "arrays": {"do": "arrays", "count": 4, "seed": 0},
    "naps": {"do": "naps", "lengths": [0.0] * 4},
}
_LOOK_S, _BUSY_PERCENT = 0.4, 8.0


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How often each is measured, and how much of it."""

    maps: int = 7
    singles: int = 5
    single_count: int = 200  # in each of them
    arrays: int = 5
    array_count: int = 100
    colds: int = 5
    imports: int = 20
    naps: int = 3
    naps_s: float = 12.0  # all of them one after the other
    cpu_count: int = 20_000
    slow: int = 2  # at most so many of each for peers without a goal
    settle_s: float = 4.0  # so long for the machine to come to rest before each


QUICK = Sizes(
    maps=3,
    singles=3,
    single_count=170,
    arrays=2,
    array_count=50,
    colds=2,
    imports=8,
    naps=1,
    naps_s=4.0,
    slow=1,
    settle_s=2.0,
)


@dataclass(kw_only=True)
class Bench:
    """Who takes part, and what was measured so far."""

    root: Path
    sizes: Sizes
    samples: Samples
    peers: dict[str, str]  # by the name of a peer: its interpreter
    missing: dict[str, str]  # by the name of a contestant: why it has no figures
    rivals: dict[str, Rival] = field(default_factory=dict[str, Rival])

    def measured(self, who: str, repeat: int, do: str, **request: Any) -> dict[str, Any] | None:
        """What a contestant says of a piece of work; None where it takes no part in this repeat.

        A peer that fails is out for good. Raises `CallsFailed` where ours does, or the limit.
        """
        rival = self.rivals.get(who)
        if rival is None or (who in _SLOW and repeat >= self.sizes.slow):
            return None
        try:
            rival.ask(**WARM[do])  # whatever went to sleep meanwhile, or did something else, is ready again
            self.settle()
            return rival.ask(do, **request)
        except CallsFailed as error:
            self.drop(who, error)
            return None

    def settle(self) -> None:
        """Wait until the machine does little, or no less than before: peers that poll never let it rest.

        What one of them leaves to be done is not the next one's to pay.
        """
        deadline = time.monotonic() + self.sizes.settle_s
        before, busy = 100.0, psutil.cpu_percent(_LOOK_S)
        while _BUSY_PERCENT < busy < before and time.monotonic() < deadline:
            before, busy = busy, psutil.cpu_percent(_LOOK_S)

    def drop(self, who: str, error: CallsFailed) -> None:
        """Go on without a peer that failed. Raises the error if it is not a peer."""
        if who not in PEERS.values():
            raise error
        self.missing[who] = "failed"
        print(f"goes on without {who}: {error}", file=sys.stderr, flush=True)
        rival = self.rivals.pop(who, None)
        if rival is not None:
            rival.close()


def main(argv: list[str]) -> int:
    """Measure, print the tables and the JSON object; 1 when a goal was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks calls", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--only", metavar="PART", choices=[*ALONE, *TOGETHER], action="append", help="only this part")
    parser.add_argument("--no-peers", action="store_true", help="ours and the process pool only")
    options = parser.parse_args(argv)
    _take_two_cores()
    wanted = options.only or [*ALONE, *TOGETHER]
    report = Report("calls", packages=("psutil", "numpy", *PEERS))
    root = Path(tempfile.mkdtemp(prefix="gb", dir="/tmp"))
    try:
        bench = _bench(root, QUICK if options.quick else Sizes(), no_peers=options.no_peers)
        for name in ALONE:
            if name in wanted:
                ALONE[name](bench)
        if parts := [TOGETHER[name] for name in TOGETHER if name in wanted]:
            with _started(bench):
                for part in parts:
                    part(bench)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    for row in rows(bench.samples):
        report.add(row)
    print(beside(bench.samples, bench.missing) + "\n")
    return report.finish()


def _take_two_cores() -> None:
    """The same two for everybody, also on a large machine: what is started inherits it."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:_SLOTS])


def _bench(root: Path, sizes: Sizes, *, no_peers: bool) -> Bench:
    python = os.environ.get(_PEER_PYTHON, sys.executable)
    peers: dict[str, str] = {}
    missing: dict[str, str] = {}
    for package, who in PEERS.items():
        if no_peers:
            missing[who] = "left out"
        elif subprocess.run([python, "-c", f"import {package}"], capture_output=True, check=False).returncode:
            missing[who] = "not installed"
        else:
            peers[who] = python
    project = root / "project"
    project.mkdir()
    shutil.copy(_HERE / "functions.py", project)
    samples = Samples(array_count=sizes.array_count, cpu_count=sizes.cpu_count, slots=_SLOTS)
    return Bench(root=root, sizes=sizes, samples=samples, peers=peers, missing=missing)


def _environment(scratch: Path, home: Home | None = None, *path: Path) -> dict[str, str]:
    """Of a contestant. Ours has its data folder in `home`.

    `scratch`: a folder for what a peer keeps of its own; `path`: where workers find modules.
    """
    env = home.env() if home is not None else dict(os.environ)
    for name in ("JPY_SESSION_NAME", "RAY_ADDRESS", "PYTHONPATH"):
        env.pop(name, None)
    env["IPYTHONDIR"] = str(scratch / "ipython")
    if path:
        env["PYTHONPATH"] = os.pathsep.join(map(str, path))
    return env


# ---------------------------------------------------------------- with nothing running


def cold(bench: Bench) -> None:
    """From the start of a program to the first result."""
    compile_ours()
    for repeat in range(bench.sizes.colds):
        for who in (OURS, POOL, *PEERS.values()):
            if who in PEERS.values() and (who not in bench.peers or repeat >= max(bench.sizes.slow, 1)):
                continue
            bench.settle()
            try:
                bench.samples.cold_s.setdefault(who, []).append(_cold_s(who, bench.peers.get(who, sys.executable)))
            except CallsFailed as error:
                bench.drop(who, error)
                bench.peers.pop(who)


def _cold_s(who: str, python: str) -> float:
    """Seconds to the first result of a program in a folder of its own."""
    with Home() as home:
        folder = home.root / "project"
        folder.mkdir()
        shutil.copy(_HERE / "cold" / f"{_PROGRAMS[who]}.py", folder / "main.py")
        env = _environment(home.root, home if who == OURS else None)
        with (home.root / "cold.log").open("wb") as log:
            began = time.perf_counter()
            process = subprocess.Popen([python, "main.py"], cwd=folder, env=env, stdout=subprocess.PIPE, stderr=log)
        with process:
            line = process.stdout.readline() if process.stdout is not None else b""
            seconds = time.perf_counter() - began
            try:
                process.wait(_COLD_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise CallsFailed(f"{who} did not end within {_COLD_S:.0f} s of its first result") from None
        if line != b"1\n":
            said = (home.root / "cold.log").read_text(errors="replace").strip().splitlines()
            raise CallsFailed(f"{who}'s first result is {line!r}: {said[-1] if said else 'no word from it'}")
    return seconds


def imports(bench: Bench) -> None:
    """What `import gpulayer` adds to the start of Python."""
    for code in ("pass", "import gpulayer"):
        _python_ms(code)  # its files are in the cache
    for _ in range(bench.sizes.imports):
        bare_ms = _python_ms("pass")
        bench.samples.import_ms.append(_python_ms("import gpulayer") - bare_ms)


def _python_ms(code: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], cwd="/", check=True)
    return 1000 * (time.perf_counter() - began)


# ---------------------------------------------------------------- by turns


@contextlib.contextmanager
def _started(bench: Bench) -> Iterator[None]:
    """Start everybody who takes part, warm, and end them."""
    with contextlib.ExitStack() as stack:
        near, far = stack.enter_context(Home()), stack.enter_context(Home())
        stack.push(lambda kind, error, _: _say_logs(error, near, far))
        ours = {OURS: (near, near.data / "worker"), TCP: (far, joined.start(far, slots=_SLOTS))}
        for who in _PROGRAMS:
            if who not in PEERS.values() or who in bench.peers:
                home, worker = ours.get(who, (None, None))
                try:
                    _start(bench, stack, who, home, str(worker or _SLOTS))
                except CallsFailed as error:
                    bench.drop(who, error)
        yield


def _say_logs(error: BaseException | None, *homes: Home) -> None:
    """Of what failed: nothing else will be left of it."""
    if isinstance(error, CallsFailed):
        for home in homes:
            for path in sorted([*home.root.glob("*.log"), *home.root.glob("**/logs/*.log")]):
                lines = path.read_text(errors="replace").splitlines()
                print(f"--- {path}", *lines[-20:], sep="\n", file=sys.stderr, flush=True)


def _start(bench: Bench, stack: contextlib.ExitStack, who: str, home: Home | None, about: str) -> None:
    """Start one and let it do a little, which is not counted. `about`: its argument; `home`: the deployment of ours."""
    folder = bench.root / "project"
    command = [bench.peers.get(who, sys.executable), "-m", f"benchmarks.callswork.{_PROGRAMS[who]}", about]
    env = _environment(bench.root, home, _HERE.parents[1], folder)
    env["GPULAYER_LOCAL_WORKER"] = f"--slots {_SLOTS} --warm 0"
    log = bench.root / f"{who}.log"
    rival = Rival(who, command, env=env, folder=folder, log=log, leaves=home is not None)
    stack.callback(rival.close)
    bench.rivals[who] = rival
    rival.ask("noops", count=200)


def maps(bench: Bench) -> None:
    """Many no-op calls by one map."""
    for repeat in range(bench.sizes.maps):
        for column, who, batch in (
            (OURS, OURS, 1),
            (POOL, POOL, 1),
            (POOL64, POOL, 64),
            *((w, w, 1) for w in PEERS.values()),
        ):
            answer = bench.measured(who, repeat, "noops", count=bench.samples.map_count, batch=batch)
            if answer is not None:
                bench.samples.map_s.setdefault(column, []).append(answer["seconds"])


def singles(bench: Bench) -> None:
    """One warm call after the other."""
    for repeat in range(bench.sizes.singles):
        for who in (OURS, POOL, *PEERS.values()):
            answer = bench.measured(who, repeat, "singles", count=bench.sizes.single_count)
            if answer is not None:
                bench.samples.single_s.setdefault(who, []).append(answer["seconds"])
                if who == OURS:
                    spent = bench.samples.single_cpu_s
                    bench.samples.single_cpu_s = {n: s + spent.get(n, 0.0) for n, s in answer["cpu_s"].items()}


def arrays(bench: Bench) -> None:
    """Arrays there and back. The first round is not counted: shared memory and files that are new cost more."""
    for repeat in range(-1, bench.sizes.arrays):
        for number, who in enumerate((OURS, TCP, POOL, *PEERS.values())):
            seed = 100 + 10 * repeat + number  # nobody has seen them before
            answer = bench.measured(who, repeat, "arrays", count=bench.sizes.array_count, seed=seed)
            if answer is not None and repeat >= 0:
                bench.samples.arrays_s.setdefault(who, []).append(answer["seconds"])
                for part, spent_s in answer["cpu_s"].items():
                    bench.samples.arrays_cpu_s.setdefault(who, {}).setdefault(part, []).append(spent_s)


def naps(bench: Bench) -> None:
    """Calls of uneven lengths, which nobody knows beforehand."""
    bench.samples.lengths = lengths = uneven(50, bench.sizes.naps_s)
    for repeat in range(bench.sizes.naps):
        for who in (OURS, POOL, PEERS["ray"]) if repeat == 0 else (OURS,):
            answer = bench.measured(who, repeat, "naps", lengths=lengths)
            if answer is not None:
                bench.samples.naps_s.setdefault(who, []).append(answer["seconds"])


def cpu(bench: Bench) -> None:
    """Which part of ours takes how much CPU for a call: of a larger map, for a process's time has steps of 10 ms."""
    answer = bench.measured(OURS, 0, "noops", count=bench.sizes.cpu_count)
    if answer is not None:
        bench.samples.cpu_s = answer["cpu_s"]


Part = Callable[[Bench], None]
ALONE: dict[str, Part] = {"cold": cold, "import": imports}
TOGETHER: dict[str, Part] = {"map": maps, "single": singles, "arrays": arrays, "uneven": naps, "cpu": cpu}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
