"""One mutant in a process of its own: seeds and staged situations run until one finds it or its CPU time is over.

It is found when an invariant fails, when the code under test raises, or when it does not come back. A fault of the
simulator, or a module that can't be imported, finds nothing: that is an error.
"""

from __future__ import annotations

import itertools
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType

from tests.simulation.mutants.mutant import Finder, Mutant

ROOT = Path(__file__).resolve().parents[3]

UNCHANGED = "unchanged"  # in the place of a mutant's name: the code as it is

_FOUND, _MISSED, _FAULTY = 10, 11, 12  # exit codes that no accident has
_VERDICTS = {_FOUND: "found", _MISSED: "missed", _FAULTY: "faulty"}
_FIRST_SEEDS = 10  # before what is staged
_SEED_S = 5.0  # of CPU time: a seed that needs more does not end; the slowest needs one
_MEMORY_BYTES = 2 * 1024**3
_SITUATIONS = "/tests/simulation/situations"  # they look for what is not there: a failing check
_UNDER_TEST = ("/gpulayer_server/", "/gpulayer_worker/", "/gpulayer/protocol/")


@dataclass(frozen=True, kw_only=True)
class Result:
    """What seeds say of a mutant. `line`: what the seed that found it said; `cpu_s`: of the whole process.

    `verdict`: 'found', 'missed', or 'faulty' when the simulator itself stumbled over it.
    """

    verdict: str
    line: str
    cpu_s: float

    @property
    def found(self) -> bool:
        """Whether it is found."""
        return self.verdict == "found"


def run_here(mutant: Mutant | None, seconds: float, start: int) -> int:
    """In this process, which must not have imported the code yet: an exit code. None: the code as it is."""
    if mutant is not None:
        sys.meta_path.insert(0, Finder(mutant))
    runs = _runs(start)  # imports all that there is to import
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    signal.signal(signal.SIGVTALRM, _too_long)
    ends_at = time.process_time() + seconds
    for name, run in runs:
        if time.process_time() >= ends_at:
            break
        signal.setitimer(signal.ITIMER_VIRTUAL, _SEED_S)
        try:
            run()
        except Exception as error:  # noqa: BLE001 whatever goes wrong in a seed is what we look for
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            return _judge(error, name)
    return _MISSED


def _runs(start: int) -> Iterator[tuple[str, Callable[[], object]]]:
    """A few seeds, everything that is staged, then seeds without end."""
    from tests.simulation.chaos import run_seed
    from tests.simulation.staging import scenarios

    seeds = ((f"seed {seed}", partial(run_seed, seed)) for seed in itertools.count(start))
    return itertools.chain(itertools.islice(seeds, _FIRST_SEEDS), scenarios().items(), seeds)


class _DoesNotEndError(Exception):
    """The code under test does not come back."""


def _too_long(number: int, frame: FrameType | None) -> None:
    signal.setitimer(signal.ITIMER_VIRTUAL, 0.5)  # again, where somebody caught it
    raise _DoesNotEndError(f"more than {_SEED_S:g} s of CPU time")


def _judge(error: Exception, name: str) -> int:

    where = [_where(each) for each in (error, error.__cause__) if each is not None]
    inside = any(part in place for part in (*_UNDER_TEST, _SITUATIONS) for place in where)
    found = isinstance(error, (AssertionError, _DoesNotEndError)) or inside
    if not found:
        traceback.print_exception(error)
    said = str(error) or str(traceback.extract_tb(error.__traceback__)[-1].line)
    print(f"{name}: {type(error).__name__}: {' '.join(said.split())}", flush=True)
    return _FOUND if found else _FAULTY


def _where(error: BaseException) -> str:
    """The innermost file of ours in which it was raised."""
    frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    ours = (*_UNDER_TEST, "/tests/simulation/")
    return next((frame for frame in reversed(frames) if any(part in frame for part in ours)), "")


def find(name: str, seconds: float, start: int = 0) -> Result:
    """Whether seeds find a mutant within so many seconds of CPU time.

    Raises `RuntimeError` when it was not judged: its module can't be imported, or the process was ended.
    """
    command = [sys.executable, "-m", "tests.simulation.mutants", "--one", name]
    done = subprocess.Popen(
        [*command, "--seconds", str(seconds), "--start", str(start)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    out, problem = done.communicate()
    if done.returncode not in _VERDICTS:
        raise RuntimeError(f"mutant {name} was not judged (exit code {done.returncode}): {out}{problem.strip()}")
    *_, line, cpu = ["", *out.strip().splitlines()]
    return Result(verdict=_VERDICTS[done.returncode], line=line, cpu_s=float(cpu))
