"""`python -m tests.simulation`: run seeds, or one with its trace."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from tests.simulation.chaos import run_seed


@dataclass(kw_only=True)
class Tally:
    """What was run so far."""

    seeds: int = 0
    events: int = 0
    cpu_s: float = 0.0
    failing: tuple[int, ...] = ()


def run_seeds(
    start: int, step: int, seconds: float, *, clock: Callable[[], float] = time.monotonic, most_failures: int = 1
) -> Tally:
    """Run `start`, `start + step`, … for so long by a clock, or until so many fail."""
    tally = Tally()
    ends_at = clock() + seconds
    seed = start
    while clock() < ends_at and len(tally.failing) < most_failures:
        begun = time.process_time()
        try:
            tally.events += run_seed(seed)
        except Exception:  # noqa: BLE001 whatever goes wrong in a seed is what we look for
            traceback.print_exc()
            print(f"seed {seed} fails; replay it with: python -m tests.simulation --seed {seed} --trace", flush=True)
            tally.failing += (seed,)
        tally.cpu_s += time.process_time() - begun
        tally.seeds += 1
        seed += step
    return tally


def _worker(arguments: tuple[int, int, float]) -> Tally:
    return run_seeds(*arguments)


def _run_many(start: int, seconds: float, jobs: int) -> Tally:
    if jobs == 1:
        return run_seeds(start, 1, seconds)
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        parts = pool.map(_worker, [(start + n, jobs, seconds) for n in range(jobs)])
    return Tally(
        seeds=sum(part.seeds for part in parts),
        events=sum(part.events for part in parts),
        cpu_s=sum(part.cpu_s for part in parts),
        failing=tuple(seed for part in parts for seed in part.failing),
    )


def main(argv: list[str] | None = None) -> int:
    """The command; 1 when a seed fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one seed")
    parser.add_argument("--trace", action="store_true", help="with --seed: print each event with its virtual time")
    parser.add_argument("--seconds", type=float, default=20.0, help="run seed after seed for so long")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    args = parser.parse_args(argv)
    if args.seed is not None:
        try:
            events = run_seed(args.seed, print if args.trace else None)
        except Exception:  # noqa: BLE001 whatever goes wrong in a seed is what we look for
            sys.stdout.flush()
            traceback.print_exc()
            return 1
        print(f"seed {args.seed}: {events} events, all well")
        return 0
    tally = _run_many(args.start, args.seconds, args.jobs)
    rate = tally.events / tally.cpu_s if tally.cpu_s else 0.0
    print(f"{tally.seeds} seeds, {tally.events} events, {rate:.0f} events/s of one core", end="")
    print(f", {len(tally.failing)} failing: {tally.failing}" if tally.failing else ", none failing")
    return 1 if tally.failing else 0


if __name__ == "__main__":
    sys.exit(main())
