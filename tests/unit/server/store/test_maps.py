"""Maps, arguments and results in the store."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulayer.protocol.calls import OK, RAISED, CallRun, CallsSpec, FunctionSpec, MapSpec
from gpulayer.protocol.types import CellSpec, JobSpec, Reason, State
from gpulayer_server.core.events import ArgsRow, ResultsRow
from gpulayer_server.core.state import Job, JobEnd, MapState, Task
from gpulayer_server.store import maps
from gpulayer_server.store.database import Store
from gpulayer_server.store.kept import Kept
from gpulayer_server.store.maps import StoredRun, dropped, split_id
from gpulayer_server.store.rows import encode, encoded

names = st.text(max_size=20)
times = st.floats(allow_nan=False, allow_infinity=False)
states = st.builds(
    lambda job, k, **more: MapState(job=job, k=k, id=f"{job}.{k}", **more),
    job=names,
    k=st.integers(1, 1 << 40),
    n=st.integers(1, 1 << 40),
    owner=names,
    key=names,
    spec=st.builds(MapSpec, total=st.none() | st.integers(0, 99), single=st.booleans(), method=names),
    opened_at=times,
    total=st.none() | st.integers(0, 1 << 40),
    taken=st.integers(0, 1 << 40),
    done=st.integers(0, 1 << 40),
    failed=st.integers(0, 1 << 40),
    state=st.sampled_from(State),
    cancel_wanted=st.booleans(),
    started_at=st.none() | times,
    ended_at=st.none() | times,
    problem=names,
    failed_index=st.none() | st.integers(0, 1 << 40),
    failed_code=st.integers(0, 5),
    failure=st.binary(max_size=20),
    reasons=st.lists(st.builds(Reason, worker=names, code=names, text=names), max_size=2).map(tuple),
)  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    store = Store(path)
    yield store
    store.close()


def a_job(n: int = 1, bundle: str = "", init_blobs: tuple[str, ...] = ()) -> Job:
    function = FunctionSpec(name="f", qualname="f", bundle=bundle)
    spec = JobSpec(calls=CallsSpec(function=function, init_blobs=init_blobs))
    return Job(
        id=f"job{n}", n=n, owner="ana", key=f"calls job{n}", payload_hash=f"h{n}", spec=spec, submitted_at=float(n)
    )


def a_map(k: int = 1, n: int = 1, **more: object) -> MapState:
    facts = {"owner": "ana", "key": f"key{n}.{k}", "spec": MapSpec(), "opened_at": 1.0} | more
    return MapState(n=n, k=k, id=f"job{n}.{k}", job=f"job{n}", **facts)  # type: ignore[arg-type]


def args(first: int, *data: bytes, k: int = 1, blobs: tuple[str, ...] = ()) -> ArgsRow:
    return ArgsRow(n=1, k=k, first=first, args=data, blobs=blobs)


def results(first: int, *data: bytes, k: int = 1, n: int = 1, blobs: tuple[str, ...] = ()) -> ResultsRow:
    run = CallRun(map=f"job{n}.{k}", first=first, codes=bytes([OK]) * len(data), data=data, blobs=blobs, spent_us=7)
    return ResultsRow(n=n, k=k, run=run)


def put(store: Store, *rows: object) -> None:
    store.commit([encoded(rows)])  # type: ignore[arg-type]


@given(states)
def test_a_map_comes_back(record: MapState) -> None:
    n, k, *values = encode(record)[1]
    assert maps.map_state((record.job, n, k, *values)) == record


# ---------------------------------------------------------------- what a start finds


def test_maps_that_live_are_loaded_with_what_has_a_result(store: Store, path: Path) -> None:
    live = a_map(2, total=9, taken=9, state=State.RUNNING, started_at=2.0)
    over = a_map(1, state=State.SUCCEEDED, ended_at=3.0)
    put(store, a_job(), a_job(2), over, live, results(0, b"x", k=1))
    put(store, *[results(first, *data, k=2) for first, data in [(4, (b"4", b"5")), (0, (b"0",)), (1, (b"1", b"2"))]])
    again = Store(path)
    snapshot = again.load()
    again.close()
    assert snapshot.maps == [live]
    assert snapshot.maps[0].ranges == [(0, 3), (4, 2)]
    assert snapshot.last_map_k == {1: 2}


def test_numbers_of_maps_are_known_for_jobs_that_live(store: Store) -> None:
    put(store, a_job(1), a_job(2), a_job(3), *[a_map(k, n) for n, k in ((1, 1), (1, 7), (2, 3))])
    put(store, JobEnd(id="job2", n=2, state=State.SUCCEEDED, ended_at=1.0))
    assert store.load().last_map_k == {1: 7}


def test_arguments_of_maps_that_ended_are_found(store: Store) -> None:
    put(store, a_job(), a_map(1, ended_at=1.0), a_map(2), args(0, b"x", k=1), args(1, b"y", k=1), args(0, b"z", k=2))
    assert store.maps.left_over() == [(1, 1)]
    store.commit([[("drop_args", (1, 1))]])
    assert store.maps.left_over() == []
    assert [row.args for row in store.maps.args((1, 2), 0, 9)] == [(b"z",)]


# ---------------------------------------------------------------- writing


@pytest.mark.parametrize("count", [1, 3, 4, 17, 70])
def test_many_maps_are_written_at_once_and_again_when_they_change(store: Store, count: int) -> None:
    made = [a_map(k) for k in range(1, count + 1)]
    store.commit([[*encoded([a_job()])], *[encoded([each, args(0, b"x", k=each.k)]) for each in made]])
    for each in made:
        each.done, each.state, each.key = 1, State.RUNNING, "another"
    units = [encoded([each, results(0, b"y", k=each.k)]) for each in made]
    for each in made:
        each.done = 2
    store.commit([*units, *[encoded([each]) for each in made]])
    found = store.maps.of_job("job1", 1000)
    assert [each.k for each in found] == list(range(count, 0, -1))
    assert {(each.done, each.state) for each in found} == {(2, State.RUNNING)}
    assert store.maps.by_key("ana", "key1.1") is not None  # whose it is, and by what key, never changes
    assert [store.maps.done((1, each.k)) for each in made] == [1] * count


def test_a_map_is_dropped_with_all_that_is_its(store: Store) -> None:
    put(store, a_job(), a_map(1), a_map(2), args(0, b"x", k=1), results(0, b"y", k=1), results(0, b"z", k=2))
    store.commit([dropped((1, 1))])
    assert store.maps.map("job1.1") is None
    assert (store.maps.done((1, 1)), store.maps.args((1, 1), 0, 9)) == (0, [])
    assert store.maps.done((1, 2)) == 1


# ---------------------------------------------------------------- reading


def test_maps_are_found_by_name_and_key_and_job(store: Store) -> None:
    put(store, a_job(), *[a_map(k) for k in range(1, 6)])
    assert store.maps.map("job1.3") == a_map(3)
    assert [store.maps.map(name) for name in ("job1.9", "job2.1", "job1", "job1.x", ".", "")] == [None] * 6
    assert store.maps.by_key("ana", "key1.4") == a_map(4)
    assert store.maps.by_key("bob", "key1.4") is None
    assert [each.k for each in store.maps.of_job("job1", 2)] == [5, 4]
    assert [each.k for each in store.maps.of_job("job1", 2, before=3)] == [2, 1]


@pytest.mark.parametrize(
    ("name", "parts"),
    [("k3f9.17", ("k3f9", 17)), ("a.b.1", ("a.b", 1)), ("k3f9", None), ("k.", None), ("k.-1", None), ("k.²", None)],
)
def test_the_parts_of_a_maps_name(name: str, parts: tuple[str, int] | None) -> None:
    assert split_id(name) == parts


def test_arguments_are_read_by_the_rows_they_are_in(store: Store) -> None:
    rows = [args(0, b"0", b"1", blobs=("d",)), args(2, b"2"), args(3, b"3", b"4", b"5")]
    put(store, a_job(), a_map(), *rows)
    assert store.maps.args((1, 1), 1, 1) == rows[:1]
    assert store.maps.args((1, 1), 1, 2) == rows[:2]
    assert store.maps.args((1, 1), 4, 1) == rows[2:]
    assert store.maps.args((1, 1), 6, 1) == rows[2:]  # whoever reads looks what is in it
    assert store.maps.args((1, 2), 0, 9) == []


def plain(found: list[StoredRun]) -> list[tuple[int, tuple[bytes, ...]]]:
    return [(run.first, run.data) for _, run in found]


def test_results_are_read_in_order_up_to_a_gap_or_so_many_bytes(store: Store) -> None:
    put(store, a_job(), a_map(), results(3, b"3"), results(0, b"0", b"1", b"2"), results(5, b"5"))
    read = store.maps.results_by_index
    assert plain(read((1, 1), 0, 100)) == [(0, (b"0", b"1", b"2")), (3, (b"3",))]
    assert plain(read((1, 1), 2, 100)) == [(2, (b"2",)), (3, (b"3",))]
    assert plain(read((1, 1), 0, 1)) == [(0, (b"0", b"1", b"2"))]
    assert [plain(read((1, 1), first, 100)) for first in (4, 6)] == [[], []]
    put(store, results(4, b"4"))
    assert [first for first, _ in plain(read((1, 1), 4, 100))] == [4, 5]


def test_results_are_read_as_they_came(store: Store) -> None:
    put(store, a_job(), a_map(), a_map(2), results(3, b"3"), results(0, b"0", b"1"))
    put(store, results(0, b"another's", k=2), results(2, b"2"))
    read = store.maps.results_by_coming
    found = read((1, 1), 0, 100)
    assert [first for first, _ in plain(found)] == [3, 0, 2]
    assert [first for first, _ in plain(read((1, 1), found[0].seq, 100))] == [0, 2]
    assert [first for first, _ in plain(read((1, 1), 0, 1))] == [3]
    assert read((1, 1), found[-1].seq, 100) == []


def test_a_reader_that_stops_early_does_not_hold_the_log(store: Store) -> None:
    put(store, a_job(), a_map(), *[results(n, b"x" * 100) for n in range(20)])
    assert len(store.maps.results_by_index((1, 1), 0, 1)) == 1
    assert not store._read.in_transaction
    busy, *_ = store._write.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    assert busy == 0


def test_the_calls_of_a_job_are_counted(store: Store) -> None:
    put(store, a_job(), a_map(1, taken=5, done=5, failed=1), a_map(2, taken=3))
    count = store.maps.count(1, over=False)
    assert (count.maps, count.calls, count.done, count.failed, count.dropped) == (2, 8, 5, 1, 0)
    put(store, a_map(3, taken=1))
    ended = a_map(4, taken=7, done=3, left_at=15.0, ended_at=20.0, state=State.CANCELLED)
    put(store, ended)
    count = store.maps.count(1, over=True)
    assert (count.calls, count.dropped) == (16, 4)


def test_how_an_object_ended_is_found_by_what_it_was_made_of(store: Store) -> None:
    put(store, a_job(1), a_job(2), replace(a_job(3), key="a client's", payload_hash="h1"))
    assert store.maps.end_of_calls("ana", "h1") is None
    put(
        store,
        *[
            JobEnd(id=f"job{n}", n=n, state=state, ended_at=1.0)
            for n, state in ((1, State.FAILED), (3, State.SUCCEEDED))
        ],
    )
    assert store.maps.end_of_calls("ana", "h1") is State.FAILED
    assert store.maps.end_of_calls("bob", "h1") is None


def test_a_job_of_calls_ended_as_its_row_says(store: Store) -> None:
    """Some of its runners were not needed any more, and were cancelled before they began."""
    job = a_job()
    tasks = [Task(id=f"job1/{n}", job="job1", n=1, index=n, state=state) for n, state in
             enumerate((State.CANCELLED, State.SUCCEEDED, State.FAILED))]  # fmt: skip
    put(store, job, *tasks, JobEnd(id="job1", n=1, state=State.SUCCEEDED, ended_at=1.0))
    (found,) = store.page(10)
    assert (found.state, found.task.index) == (State.SUCCEEDED, 1)


# ---------------------------------------------------------------- what is kept, and what was before


def test_blobs_that_calls_name_are_named(store: Store, path: Path) -> None:
    put(store, a_job(1, bundle="b1", init_blobs=("i1", "i2")), a_job(2), a_map())
    put(store, args(0, b"x", blobs=("a1", "a2")), args(1, b"y"), results(0, b"x", blobs=("r1",)), results(1, b"y"))
    kept = Kept(path)
    found = list(kept.named())
    kept.close()
    assert {digest for some in found for digest in some.manifests} - {""} == {"b1"}
    assert {digest for some in found for digest in some.blobs} - {""} == {"i1", "i2", "a1", "a2", "r1"}


def test_a_store_of_before_there_were_calls_is_brought_up_to_date(path: Path) -> None:
    """Version 5 of the schema."""
    old = sqlite3.connect(path)
    scripts = sorted(f.name for f in resources.files("gpulayer_server.store").joinpath("migrations").iterdir())
    for name in [name for name in scripts if name < "006"]:
        old.executescript(resources.files("gpulayer_server.store").joinpath("migrations").joinpath(name).read_text())
    old.execute("PRAGMA user_version = 5")
    job = Job(
        id="j", n=1, owner="o", key="k", payload_hash="h", spec=JobSpec(cell=CellSpec(code="1")), submitted_at=1.0
    )
    old.execute("INSERT INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?, ?)", encode(job)[1])
    task = encode(Task(id="j/0", job="j", n=1, index=0))[1]
    old.execute(f"INSERT INTO tasks VALUES ({', '.join('?' * len(task))})", task)
    old.commit()
    old.close()
    store = Store(path)
    assert [each.id for each in store.load().jobs] == ["j"]
    put(
        store,
        a_job(2),
        a_map(1, 2),
        ResultsRow(n=2, k=1, run=CallRun(map="job2.1", first=0, codes=bytes([RAISED]), data=(b"e",))),
    )
    assert [each.ranges for each in store.load().maps] == [[(0, 1)]]
    store.close()
