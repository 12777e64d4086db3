"""Faults, put into the code one at a time: does a seed find each of them?

`python -m tests.simulation.mutants [--seconds S] [--jobs N] [NAME …]` runs seeds against each mutant, in a process of
its own. A name may be the beginning of several. The last line is the score; exit code 1 when it is too low, or when a
seed finds what is stated to be an equivalent.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from tests.simulation.mutants.catalog import MUTANTS
from tests.simulation.mutants.equivalents import EQUIVALENT
from tests.simulation.mutants.running import UNCHANGED, find, run_here

LEAST_PERCENT = 95.0


def _say(name: str, seconds: float, start: int) -> str:
    """Try one, and say so; its verdict."""
    result = find(name, seconds, start)
    if name in EQUIVALENT:
        verdict = "WRONG" if result.found else "equal"
        line = result.line if result.found else EQUIVALENT[name]
    else:
        verdict, line = ("found" if result.found else result.verdict.upper()), result.line
    print(f"{verdict:6}  {result.cpu_s:5.1f} s  {name}  {MUTANTS[name].line[:90]}", flush=True)
    print(f"                 {line[:150]}", flush=True)
    return verdict


def main(argv: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", default=[], help="mutants; all, if none is named")
    parser.add_argument("--seconds", type=float, default=20.0, help="of CPU time, for each mutant")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, choices=(1, 2), default=1, help="processes at a time")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.one:
        code = run_here(None if args.one == UNCHANGED else MUTANTS[args.one], args.seconds, args.start)
        print(time.process_time())
        return code
    names = [name for name in MUTANTS if not args.names or name.startswith(tuple(args.names))]
    if not names:
        parser.error(f"no mutant is named {' or '.join(args.names)}")
    unchanged = find(UNCHANGED, args.seconds, args.start)
    if unchanged.verdict != "missed":
        print(f"the code as it is fails: {unchanged.line}")
        return 1
    with ThreadPoolExecutor(args.jobs) as pool:
        verdicts = Counter(pool.map(lambda name: _say(name, args.seconds, args.start), names))
    found, missed = verdicts["found"], verdicts["MISSED"] + verdicts["FAULTY"]
    percent = 100.0 * found / (found + missed) if found + missed else 100.0
    if verdicts["WRONG"]:
        print(f"{verdicts['WRONG']} stated equivalents are none: seeds find them")
    stated = f"{verdicts['equal']} stated equivalents not counted"
    print(f"score: {percent:.1f} % ({found} of {found + missed} found, {stated})")
    return 1 if percent < LEAST_PERCENT or verdicts["WRONG"] else 0


if __name__ == "__main__":
    sys.exit(main())
