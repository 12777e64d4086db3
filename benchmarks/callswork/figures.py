"""From what was measured to rows: ratios of the same repeat, percentiles, the ideal makespan, a table of everybody."""

from __future__ import annotations

import heapq
import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.report import Row, figure, median

OURS, TCP, POOL, POOL64 = "ours", "ours, tcp", "pool", "pool, by 64"
PEERS = {"ray": "Ray", "distributed": "Dask", "ipyparallel": "ipyparallel"}  # by the distribution's name
COLUMNS = (OURS, POOL, POOL64, *PEERS.values())
ARRAY_MB = 2.0  # each way


@dataclass
class Samples:
    """What the repeats measured, by contestant; repeats of one part are in step."""

    map_s: dict[str, list[float]] = field(default_factory=dict[str, list[float]])  # `map_count` no-ops by one map
    single_s: dict[str, list[list[float]]] = field(default_factory=dict[str, list[list[float]]])  # rounds of calls
    single_cpu_s: dict[str, float] = field(default_factory=dict[str, float])  # of ours by part, all rounds together
    arrays_s: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    arrays_cpu_s: dict[str, dict[str, list[float]]] = field(default_factory=dict[str, dict[str, list[float]]])
    cold_s: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    naps_s: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    import_ms: list[float] = field(default_factory=list[float])
    cpu_s: dict[str, float] = field(default_factory=dict[str, float])
    map_count: int = 2000
    array_count: int = 100
    cpu_count: int = 20_000
    lengths: list[float] = field(default_factory=list[float])
    slots: int = 2


def percentile(samples: Sequence[float], percent: float) -> float:
    """The smallest sample that so many percent do not exceed. Raises ValueError for no samples."""
    if not samples:
        raise ValueError("no samples: nothing was measured")
    return sorted(samples)[max(0, math.ceil(len(samples) * percent / 100) - 1)]


def ratios(slower: Sequence[float], faster: Sequence[float]) -> list[float]:
    """How many times as long the first took as the second, repeat by repeat; as many as both have."""
    return [a / b for a, b in zip(slower, faster, strict=False)]


def ideal_s(lengths: Sequence[float], slots: int) -> float:
    """The makespan with nothing around: the longest first, each to whoever is free first, seconds."""
    free_at = [0.0] * slots
    for length in sorted(lengths, reverse=True):
        heapq.heappush(free_at, heapq.heappop(free_at) + length)
    return max(free_at)


def uneven(count: int, total_s: float, seed: int = 50) -> list[float]:
    """Lengths in seconds, the longest up to six times the shortest, in an order that nobody knows; `total_s` in all."""
    source = random.Random(seed)
    weights = [source.uniform(1.0, 6.0) for _ in range(count)]
    return [round(total_s * weight / sum(weights), 4) for weight in weights]


# ---------------------------------------------------------------- rows


def rows(samples: Samples) -> list[Row]:
    """All rows for which there are samples."""
    return [*_map(samples), *_single(samples), *_arrays(samples), *_cold(samples), *_rest(samples), *_peers(samples)]


def _map(samples: Samples) -> list[Row]:
    ours = samples.map_s.get(OURS)
    if not ours:
        return []
    count = samples.map_count
    note = f"{count:,} no-op calls by one map, durable, ordered results collected, {samples.slots} slots"
    found = [median("calls.map_per_s", [count / s for s in ours], "calls/s", note=note)]
    for name, who, goal in (
        ("calls.map_vs_pool", POOL, ">= 8"),
        ("calls.map_vs_pool64", POOL64, ">= 0.15"),
        ("calls.map_vs_ray", PEERS["ray"], ">= 40"),
        ("calls.map_vs_dask", PEERS["distributed"], ""),
        ("calls.map_vs_ipyparallel", PEERS["ipyparallel"], ""),
    ):
        theirs = samples.map_s.get(who)
        if theirs:
            note = f"{_word(who)}: {figure(statistics.median(count / s for s in theirs))} calls/s"
            found.append(median(name, ratios(theirs, ours), "ratio", note=note, goal=goal))
    return found


def _single(samples: Samples) -> list[Row]:
    found: list[Row] = []
    for percent, name, goal in ((50, "calls.p50_ms", "<= 1.5"), (99, "calls.p99_ms", "<= 6.0")):
        if rounds := samples.single_s.get(OURS):
            beside = [
                f"{_word(who)} {figure(1000 * percentile(_flat(theirs), percent))}"
                for who, theirs in samples.single_s.items()
                if who != OURS
            ]
            note = f"{len(_flat(rounds)):,} warm calls; {', '.join(beside)}" if beside else "warm calls"
            found.append(_of_rounds(name, rounds, percent, note=note, goal=goal))
    for part, spent_s in samples.single_cpu_s.items():
        value = 1e6 * spent_s / len(_flat(samples.single_s[OURS]))
        found.append(Row(name=f"calls.one_cpu_us_{_key(part)}", value=value, unit="us/call", note="of one warm call"))
    return found


def _of_rounds(name: str, rounds: Sequence[Sequence[float]], percent: float, *, note: str, goal: str) -> Row:
    """A percentile of all calls; smallest and largest are those of a round."""
    each = [1000 * percentile(part, percent) for part in rounds]
    value = 1000 * percentile(_flat(rounds), percent)
    return Row(name=name, value=value, unit="ms", min=min(each), max=max(each), note=note, goal=goal)


def _arrays(samples: Samples) -> list[Row]:
    found: list[Row] = []
    ray = samples.arrays_s.get(PEERS["ray"], [])
    for name, who, goal, way in (
        ("samehost", OURS, ">= 1.2", "worker beside the control plane"),
        ("tcp", TCP, ">= 0.6", "worker that joined by address, blobs by HTTP over loopback"),
    ):
        ours = samples.arrays_s.get(who)
        if not ours:
            continue
        rates = [samples.array_count * ARRAY_MB / s for s in ours]
        note = f"{samples.array_count} random arrays of {ARRAY_MB:.0f} MB, each plus one; {way}"
        found.append(median(f"calls.arrays_{name}_mb_per_s", rates, "MB/s each way", note=note))
        for part, spent_s in samples.arrays_cpu_s.get(who, {}).items():
            spent_ms = [1000 * s / samples.array_count for s in spent_s]
            found.append(median(f"calls.arrays_{name}_cpu_ms_{_key(part)}", spent_ms, "ms/array", note="all threads"))
        if ray:
            rate = statistics.median(samples.array_count * ARRAY_MB / s for s in ray)
            note = f"Ray: {figure(rate)} MB/s each way, in shared memory of this machine"
            found.append(median(f"calls.arrays_{name}_vs_ray", ratios(ray, ours), "ratio", note=note, goal=goal))
    return found


def _cold(samples: Samples) -> list[Row]:
    ours = samples.cold_s.get(OURS)
    if not ours:
        return []
    beside = [
        f"{_word(who)} {figure(statistics.median(theirs))}" for who, theirs in samples.cold_s.items() if who != OURS
    ]
    note = "; ".join(["from the start of python, nothing running, fresh data folder", ", ".join(beside)])
    return [median("calls.cold_s", ours, "s", note=note.rstrip("; "), goal="<= 1.0")]


def _rest(samples: Samples) -> list[Row]:
    found: list[Row] = []
    if ours := samples.naps_s.get(OURS):
        best_s = ideal_s(samples.lengths, samples.slots)
        beside = [
            f"{_word(who)} {statistics.median(theirs) / best_s:.3f}"
            for who, theirs in samples.naps_s.items()
            if who != OURS
        ]
        note = f"{len(samples.lengths)} calls of {min(samples.lengths):.2f} to {max(samples.lengths):.2f} s, "
        note += ", ".join([f"in the best order {best_s:.2f} s", *beside])
        ratio = [s / best_s for s in ours]
        found.append(median("calls.uneven_makespan_ratio", ratio, "ratio", note=note, goal="<= 1.15"))
    if samples.import_ms:
        note = "`import gpulayer` over `python -c pass`, by turns"
        found.append(median("calls.import_ms", samples.import_ms, "ms", note=note, goal="<= 60"))
    for name, spent_s in samples.cpu_s.items():
        note = f"of a map of {samples.cpu_count:,} no-op calls, all threads"
        value = 1e6 * spent_s / samples.cpu_count
        found.append(Row(name=f"calls.cpu_us_{_key(name)}", value=value, unit="us/call", note=note))
    return found


def _peers(samples: Samples) -> list[Row]:
    """The others' own figures, for whoever compares runs."""
    found: list[Row] = []
    for key, who in (("pool", POOL), ("pool64", POOL64), *((key, who) for key, who in PEERS.items())):
        if map_s := samples.map_s.get(who):
            found.append(median(f"calls.map_per_s_{key}", [samples.map_count / s for s in map_s], "calls/s"))
        for percent in (50, 99):
            if rounds := samples.single_s.get(who):
                found.append(_of_rounds(f"calls.p{percent}_ms_{key}", rounds, percent, note="", goal=""))
        if arrays_s := samples.arrays_s.get(who):
            rates = [samples.array_count * ARRAY_MB / s for s in arrays_s]
            found.append(median(f"calls.arrays_mb_per_s_{key}", rates, "MB/s each way"))
        if cold_s := samples.cold_s.get(who):
            found.append(median(f"calls.cold_s_{key}", cold_s, "s"))
    return found


def _flat(rounds: Sequence[Sequence[float]]) -> list[float]:
    return [each for part in rounds for each in part]


def _key(part: str) -> str:
    return part.replace(" ", "_")


def _word(who: str) -> str:
    return {POOL: "ProcessPoolExecutor", POOL64: "ProcessPoolExecutor in batches of 64"}.get(who, who)


# ---------------------------------------------------------------- everybody side by side


def beside(samples: Samples, missing: Mapping[str, str]) -> str:
    """Everybody's figures as aligned text. `missing`: by contestant, why there are none: 'not installed'."""
    lines = [["", *COLUMNS]]
    for title, cells in (
        ("map, calls/s", {w: samples.map_count / statistics.median(s) for w, s in samples.map_s.items()}),
        ("one call, p50 ms", {w: 1000 * percentile(_flat(s), 50) for w, s in samples.single_s.items()}),
        ("one call, p99 ms", {w: 1000 * percentile(_flat(s), 99) for w, s in samples.single_s.items()}),
        (
            "arrays, MB/s each way",
            {w: samples.array_count * ARRAY_MB / statistics.median(s) for w, s in samples.arrays_s.items()},
        ),
        ("cold start, s", {w: statistics.median(s) for w, s in samples.cold_s.items()}),
        ("uneven calls, s", {w: statistics.median(s) for w, s in samples.naps_s.items()}),
    ):
        if cells:
            lines.append([title, *(figure(cells[w]) if w in cells else missing.get(w, "") for w in COLUMNS)])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]
        ).rstrip()
        for line in lines
    )
