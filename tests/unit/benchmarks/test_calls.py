import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import benchmarks.callswork
from benchmarks.callswork.figures import (
    OURS,
    POOL,
    POOL64,
    TCP,
    Samples,
    beside,
    ideal_s,
    percentile,
    ratios,
    rows,
    uneven,
)
from benchmarks.callswork.rival import CallsFailed, Rival
from benchmarks.report import Row

WORK = Path(benchmarks.callswork.__file__).parent


def by_name(samples: Samples) -> dict[str, Row]:
    return {row.name: row for row in rows(samples)}


# ---------------------------------------------------------------- figures


def test_a_percentile_is_one_of_the_samples() -> None:
    samples = [float(n) for n in range(1, 101)]
    assert (percentile(samples, 50), percentile(samples, 99), percentile(samples, 100)) == (50.0, 99.0, 100.0)
    assert percentile([7.0], 99) == 7.0
    with pytest.raises(ValueError, match="nothing was measured"):
        percentile([], 50)


def test_ratios_are_of_the_same_repeat() -> None:
    assert ratios([4.0, 9.0], [2.0, 3.0, 1.0]) == [2.0, 3.0]


def test_the_ideal_makespan_takes_the_longest_first() -> None:
    assert ideal_s([1.0, 1.0, 2.0], 2) == 2.0
    assert ideal_s([1.0], 2) == 1.0


def test_uneven_lengths_are_the_same_each_time_and_no_more_than_asked() -> None:
    lengths = uneven(50, 12.0)
    assert lengths == uneven(50, 12.0)
    assert sum(lengths) == pytest.approx(12.0, abs=0.01)
    assert max(lengths) > 3 * min(lengths)
    assert ideal_s(lengths, 2) == pytest.approx(6.0, rel=0.01)


def test_a_peer_that_was_not_measured_has_no_ratio() -> None:
    found = by_name(Samples(map_s={OURS: [0.04, 0.05], POOL: [0.4, 0.4], POOL64: [0.008, 0.008]}))
    assert "calls.map_vs_ray" not in found
    assert found["calls.map_per_s"].value == pytest.approx(45_000)
    assert found["calls.map_vs_pool"].value == pytest.approx(9.0)
    assert not found["calls.map_vs_pool"].missed
    assert found["calls.map_vs_pool64"].value == pytest.approx(0.18)


def test_every_goal_of_the_design_is_a_row() -> None:
    everybody = [OURS, POOL, "Ray"]
    samples = Samples(
        map_s={who: [1.0] for who in (*everybody, POOL64)},
        single_s={who: [[0.001] * 100] for who in everybody},
        arrays_s={who: [0.5] for who in (*everybody, TCP)},
        cold_s={who: [0.9] for who in everybody},
        naps_s={OURS: [1.1]},
        lengths=[1.0, 1.0],
        import_ms=[30.0],
        cpu_s={"control plane": 0.2},
        arrays_cpu_s={TCP: {"client": [0.4]}},
    )
    found = by_name(samples)
    goals = {name: row.goal for name, row in found.items() if row.goal}
    assert goals == {
        "calls.map_vs_pool": ">= 8",
        "calls.map_vs_pool64": ">= 0.15",
        "calls.map_vs_ray": ">= 40",
        "calls.p50_ms": "<= 1.5",
        "calls.p99_ms": "<= 6.0",
        "calls.arrays_samehost_vs_ray": ">= 1.2",
        "calls.arrays_tcp_vs_ray": ">= 0.6",
        "calls.cold_s": "<= 1.0",
        "calls.uneven_makespan_ratio": "<= 1.15",
        "calls.import_ms": "<= 60",
    }
    assert found["calls.uneven_makespan_ratio"].value == pytest.approx(1.1)
    assert found["calls.cpu_us_control_plane"].value == pytest.approx(10.0)
    assert found["calls.arrays_tcp_cpu_ms_client"].value == pytest.approx(4.0)
    assert found["calls.p99_ms_ray"].value == pytest.approx(1.0)


def test_the_table_says_who_is_not_installed() -> None:
    text = beside(Samples(map_s={OURS: [0.04], POOL: [0.4]}), {"Ray": "not installed"})
    head, line = text.splitlines()
    assert head.split() == ["ours", "pool", "pool,", "by", "64", "Ray", "Dask", "ipyparallel"]
    assert line.split() == ["map,", "calls/s", "50,000", "5,000", "not", "installed"]


# ---------------------------------------------------------------- contestants


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copy(WORK / "functions.py", tmp_path)
    return tmp_path


@pytest.fixture
def pool(project: Path) -> Iterator[Rival]:
    rival = started(project, "-m", "benchmarks.callswork.pool", "1")
    yield rival
    rival.close()


def started(project: Path, *arguments: str) -> Rival:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(WORK.parents[1]), str(project)])}
    return Rival("pool", [sys.executable, *arguments], env=env, folder=project, log=project / "log")


def test_a_contestant_times_what_it_is_asked_for(pool: Rival) -> None:
    assert pool.ask("noops", count=20, batch=4)["seconds"] > 0
    assert len(pool.ask("singles", count=3)["seconds"]) == 3
    assert pool.ask("naps", lengths=[0.01, 0.0])["seconds"] >= 0.01
    assert pool.ask("arrays", count=2, seed=1)["seconds"] > 0


def test_a_contestant_that_fails_is_told_by_its_last_line(pool: Rival) -> None:
    with pytest.raises(CallsFailed, match="pool ended: KeyError: 'nothing of the kind'"):
        pool.ask("nothing of the kind")


def test_a_contestant_that_does_not_start_is_told_by_its_last_line(project: Path) -> None:
    with pytest.raises(CallsFailed, match="no such switch"):
        started(project, "-c", "raise SystemExit('no such switch')")


def test_a_result_that_is_not_what_went_in_is_no_figure(project: Path) -> None:
    (project / "functions.py").write_text("def noop(value):\n    return None\n")
    rival = started(project, "-m", "benchmarks.callswork.pool", "1")
    try:
        with pytest.raises(CallsFailed, match="WrongResult"):
            rival.ask("noops", count=2)
    finally:
        rival.close()
