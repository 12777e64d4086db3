"""The simulator: do seeds hold, do they find faults that are put into the code, and how fast are they?"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from benchmarks.report import Report, Row, median
from tests.simulation.__main__ import Tally, run_seeds
from tests.simulation.mutants.catalog import TO_BE_FOUND
from tests.simulation.mutants.running import find


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is run."""

    repeats: int = 6
    repeat_s: float = 20.0  # of seeds, each
    mutants: int = len(TO_BE_FOUND)
    mutant_s: float = 20.0  # of CPU time, for each mutant, at most
    first_seed: int = 0


QUICK = Sizes(repeats=3, repeat_s=4.0, mutants=8, mutant_s=10.0)


def run(sizes: Sizes) -> list[Row]:
    """The rows of one run. Prints each failing seed with the line that replays it."""
    tallies: list[Tally] = []
    seed = sizes.first_seed
    for _ in range(sizes.repeats):
        tallies.append(run_seeds(seed, 1, sizes.repeat_s, most_failures=1_000_000))
        seed += tallies[-1].seeds
    failing = [seed for tally in tallies for seed in tally.failing]
    seeds, events = sum(tally.seeds for tally in tallies), sum(tally.events for tally in tallies)
    rates = [tally.events / tally.cpu_s for tally in tallies]
    return [
        Row(
            name="simulate.failing_seeds",
            value=len(failing),
            unit="seeds",
            note=f"of {seeds} from {sizes.first_seed}, {events:,} events",
            goal="<= 0",
        ),
        _mutants(sizes),
        median("simulate.events_per_s", rates, "1/s", note="of one core", goal=">= 20000"),
    ]


def _mutants(sizes: Sizes) -> Row:
    """Each fault by itself; in a shorter run every so many-th of them."""
    step = max(1, len(TO_BE_FOUND) // sizes.mutants)
    names = list(TO_BE_FOUND)[::step]
    missed = [name for name in names if not find(name, sizes.mutant_s, sizes.first_seed).found]
    note = f"of {len(names)}, each within {sizes.mutant_s:g} s" + (f"; missed: {', '.join(missed)}" if missed else "")
    value = 100.0 * (1 - len(missed) / len(names))
    return Row(name="simulate.mutants_found_pct", value=value, unit="%", note=note, goal=">= 98")


def main(argv: list[str]) -> int:
    """Run, print the table and the JSON object; 1 when a goal was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks simulate", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer seeds, some of the mutants")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    options = parser.parse_args(argv)
    base = QUICK if options.quick else Sizes()
    sizes = Sizes(
        repeats=base.repeats,
        repeat_s=base.repeat_s,
        mutants=base.mutants,
        mutant_s=base.mutant_s,
        first_seed=options.start,
    )
    report = Report("simulate", packages=("msgspec",))
    for row in run(sizes):
        report.add(row)
    return report.finish()
