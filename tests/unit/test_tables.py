"""Machines, jobs and sessions in plain text."""

from __future__ import annotations

from typing import Any

import pytest

from gpulayer.protocol.calls import MapView
from gpulayer.protocol.types import (
    TERMINAL,
    CallsCount,
    Device,
    Inventory,
    JobView,
    Outcome,
    Reason,
    Requirements,
    SessionView,
    State,
    WorkerView,
)
from gpulayer.tables import (
    Column,
    Row,
    cut,
    fleet_table,
    job_table,
    letters,
    map_line,
    map_table,
    overview,
    session_table,
    table,
)

NOW = 10_000.0
GPUS = tuple(
    Device(uuid=f"u{n}", kind="cuda", index=n, name="NVIDIA GeForce RTX 4090", vram_bytes=24_000_000_000)
    for n in (0, 1)
)


def machine(name: str, devices: tuple[Device, ...] = (), problems: tuple[str, ...] = (), **facts: Any) -> WorkerView:
    inventory = Inventory(
        host="h", os="linux", arch="x86_64", cpu_cores=8, ram_bytes=16_000_000_000, python="3.11",
        devices=devices, problems=problems,
    )  # fmt: skip
    given: dict[str, Any] = {"connected": True, "slots": 4, "slots_free": 3} | facts
    return WorkerView(id=name, name=name, inventory=inventory, **given)


def job(state: State, **facts: Any) -> JobView:
    given: dict[str, Any] = {"id": "k3f9", "worker": "box", "name": "train.py", "submitted_at": NOW - 100} | facts
    return JobView(state=state, **given)


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [
        ("short", 5, "short"),
        ("a-long-name", 7, "a-l…ame"),
        ("ab", 1, "…"),
        ("模型训练", 8, "模型训练"),
        ("模型训练x", 7, "模…练x"),
    ],
)
def test_a_long_text_is_cut_in_its_middle(text: str, width: int, shown: str) -> None:
    assert cut(text, width) == shown
    assert letters(shown) <= width


def test_columns_stand_under_one_another() -> None:
    columns = (Column(title="name"), Column(title="n", right=True), Column(title="last"))
    rows = [Row(cells=("模型", "7", "x")), Row(cells=("long name", "1234", "y"))]
    assert table(columns, rows) == [
        "name          n  last",
        "模型          7  x",
        "long name  1234  y",
    ]


def test_only_what_may_be_cut_is_cut_the_widest_first() -> None:
    columns = (Column(cuts=True), Column(cuts=True), Column())
    rows = [Row(cells=("a" * 60, "b" * 30, "c" * 20)), Row(cells=("a", "b", "c"))]
    lines = table(columns, rows)
    assert max(map(len, lines)) == 80
    assert "c" * 20 in lines[0]
    assert lines[0].count("…") == 1 + ("b" * 30 not in lines[0])


def test_what_is_said_below_a_row_is_wrapped() -> None:
    lines = table((Column(),), [Row(cells=("x",), below=("word " * 30,))])
    assert all(len(line) <= 80 for line in lines)
    assert " ".join(" ".join(lines[1:]).split()) == ("word " * 30).strip()


def test_machines_with_their_devices() -> None:
    workers = [
        machine("gpu-box-1", GPUS, devices_free=("u1",), sessions=1, notes=("disk below its reserve",)),
        machine("laptop", local=True, slots=2, slots_free=2),
    ]
    assert fleet_table(workers, NOW) == [
        "machine                free          has                         sessions",
        "gpu-box-1              3 of 4 slots  8 cores, 16.0 GB                   1",
        "                       in use        cuda:0 RTX 4090, 24.0 GB",
        "                       free          cuda:1 RTX 4090, 24.0 GB",
        "    ! disk below its reserve",
        "laptop (this machine)  2 of 2 slots  8 cores, 16.0 GB, cpu only         –",
    ]


def test_a_machine_out_of_reach_tells_since_when_and_one_with_a_problem_which() -> None:
    away = machine("mac", connected=False, last_seen_at=NOW - 400)
    ill = machine("box", problems=("NVIDIA devices present, NVML failed: Unknown Error",))
    lines = fleet_table([away, ill], NOW)
    assert lines[1].startswith("mac      out of reach")
    assert lines[2] == "    ! last heard of 6 min ago; jobs may go on there"
    assert lines[-1] == "    ! NVIDIA devices present, NVML failed: Unknown Error"


def test_jobs_in_every_state() -> None:
    jobs = [
        job(State.RUNNING, devices=GPUS, started_at=NOW - 720),
        job(
            State.QUEUED,
            id="a81c",
            name="sweep",
            worker=None,
            requirements=Requirements(accelerator="cuda"),
            reasons=(Reason(worker="box", code="devices_busy", text="both devices busy", temporary=True),),
        ),
        job(State.ASSIGNED, id="b111", progress="fetching 3 files"),
        job(State.SUCCEEDED, id="77d0", started_at=NOW - 134.1, ended_at=NOW - 120),
        job(
            State.FAILED,
            id="77d1",
            started_at=NOW - 33,
            ended_at=NOW - 30,
            outcome=Outcome(state=State.FAILED, error="ValueError: bad"),
        ),
        job(State.RUNNING, id="c222", started_at=NOW - 5, cancelling=True),
    ]
    assert job_table(jobs, NOW) == [
        "   job   name      where                time  when",
        "●  k3f9  train.py  box cuda:0,1  12 min 00 s  running",
        "○  a81c  sweep     needs cuda     1 min 40 s  waiting",
        "    box: both devices busy",
        "◐  b111  train.py  box            1 min 40 s  starting",
        "    fetching 3 files",
        "✓  77d0  train.py  box                14.1 s  2 min ago",
        "✗  77d1  train.py  box                 3.0 s  30 s ago",
        "    ValueError: bad",
        "□  c222  train.py  box                 5.0 s  cancelling",
    ]


def test_a_job_on_several_machines_names_the_first() -> None:
    line = job_table([job(State.RUNNING, worker="box", requirements=Requirements(nodes=3))], NOW)[1]
    assert "  box and 2 more  " in line


def test_a_job_that_twenty_machines_keep_waiting_names_three() -> None:
    reasons = tuple(Reason(worker=f"box-{n}", code="slots", text="all busy", temporary=True) for n in range(20))
    lines = job_table([job(State.QUEUED, worker=None, reasons=reasons)], NOW)
    assert lines[2:] == ["    box-0: all busy", "    box-1: all busy", "    box-2: all busy", "    17 more machines"]


def test_long_names_leave_room_for_the_figures() -> None:
    long = job(State.SUCCEEDED, name="n" * 100, worker="w" * 100, started_at=NOW - 9, ended_at=NOW - 5)
    [_, line] = job_table([long], NOW)
    assert len(line) <= 80
    assert line.endswith("4.0 s  just now")


def test_sessions() -> None:
    sessions = [
        SessionView(id="s-1", name="train", worker="box", connected=True, devices=GPUS[1:], idle_since=NOW - 250),
        SessionView(id="s-2", name="eval", worker="box", connected=True, running="k3f9", idle_timeout_s=7200.0),
        SessionView(id="s-3", name="gone", worker="mac", connected=False),
    ]
    assert session_table(sessions, NOW) == [
        "   session  where       does          ends after",
        "○  train    box cuda:1  idle 4 min    30 min idle",
        "●  eval     box         runs k3f9     2 h idle",
        "◌  gone     mac         out of reach  30 min idle",
    ]


def test_all_of_it_fits_eighty_columns() -> None:
    workers = [machine("a-machine-whose-name-is-long-enough-for-two", GPUS), machine("mac", connected=False)]
    jobs = [job(State.RUNNING, name="j" * 70, started_at=NOW - 5)]
    sessions = [SessionView(id="s", name="s" * 64, worker="w" * 64, connected=True, idle_since=NOW - 9)]
    lines = overview(workers, jobs, sessions, NOW)
    assert max(map(letters, lines)) <= 80
    assert lines[0] == "machines · 1 online, 1 out of reach"
    assert "jobs · 1 live" in lines
    assert "sessions" in lines


def test_with_nothing_there_it_says_what_comes() -> None:
    assert overview([], [], [], NOW) == [
        "machines · 0 online", "  none yet: the first cell starts this one", "", "jobs", "  none yet",
    ]  # fmt: skip


def test_a_function_tells_its_calls_below_its_line() -> None:
    calls = CallsCount(calls=96, done=31, running=4, runners=2)
    lines = job_table([job(State.RUNNING, kind="calls", calls=calls, name="estimate", started_at=NOW - 60)], NOW)
    assert lines[1].split()[:3] == ["●", "k3f9", "estimate"]
    assert lines[2].strip() == "31 of 96 calls done · 4 running · 2 runners"


def test_a_function_that_was_cancelled_tells_how_many_calls_were_done() -> None:
    calls = CallsCount(calls=361, done=80, dropped=281)
    lines = job_table([job(State.CANCELLED, kind="calls", calls=calls, name="estimate", ended_at=NOW - 60)], NOW)
    assert lines[2].strip() == "80 of 361 calls were done"


WAITS = (Reason(worker="box", code="slots", text="all 2 slots busy", temporary=True),)
FAILURE = b'{"kind": "raised", "type": "ValueError", "text": "no 17\\nand more"}'
MAPS: list[tuple[dict[str, Any], str]] = [
    (
        {"state": State.RUNNING, "total": 2000, "done": 31, "running": 4, "workers": ("a", "b"), "started_at": NOW - 3},
        "● running · map k.1 of 2,000 calls · 31 done · on a, b · 3.0 s",
    ),
    (
        {"state": State.FAILED, "total": 9, "done": 8, "failed": 1, "failed_index": 7, "failure": FAILURE},
        "✗ failed · 8 of 9 calls were done · 1 failed · map k.1 · 2.0 s · call 7: ValueError: no 17",
    ),
    (
        {"state": State.CANCELLED, "total": 361, "taken": 361, "done": 80},
        "■ cancelled · 80 of 361 calls were done · map k.1 · 2.0 s",
    ),
    (
        {"state": State.CANCELLED, "taken": 80, "done": 80, "problem": "its client went away after it sent 80 calls"},
        "■ cancelled · 80 calls were done · map k.1 · 2.0 s · its client went away after it sent 80 calls",
    ),
    (
        {"state": State.RUNNING, "taken": 7, "done": 7, "left_at": NOW - 190},
        "● running · map k.1 of 7 calls so far · 7 done · 5.0 s · "
        "its client is away for 3 min, and did not send all of its calls",
    ),
    ({"state": State.CANCELLED, "single": True, "total": 1}, "■ cancelled · call k.1 · 2.0 s"),
    ({"state": State.QUEUED, "single": True, "reasons": WAITS}, "○ waiting · call k.1 · 5.0 s · box: all 2 slots busy"),
    (
        {"state": State.RUNNING, "taken": 7, "cancelling": True},
        "□ cancelling · map k.1 of 7 calls so far · 0 done · 5.0 s",
    ),
    ({"state": State.SUCCEEDED, "single": True, "total": 1, "done": 1}, "✓ done · call k.1 · 2.0 s"),
]


@pytest.mark.parametrize(("facts", "line"), MAPS)
def test_a_map_in_one_line(facts: dict[str, Any], line: str) -> None:
    over = facts["state"] in TERMINAL
    view = MapView(id="k.1", job="k", opened_at=NOW - 5, ended_at=NOW - 3 if over else None, **facts)
    assert map_line(view, NOW) == line


def test_maps_in_a_table() -> None:
    views = [
        MapView(id="k.2", job="k", state=State.QUEUED, single=True, total=1, reasons=WAITS, opened_at=NOW - 5),
        MapView(id="k.1", job="k", state=State.SUCCEEDED, total=2000, done=2000, failed=3, ended_at=NOW - 60),
    ]
    lines = map_table(views, NOW, 100)
    assert [line.split() for line in lines[1:2]] == [["○", "k.2", "1", "call", "0", "–", "–", "5.0", "s", "waiting"]]
    assert lines[2].strip() == "box: all 2 slots busy"
    assert "2,000 calls  2,000       3" in lines[3]
    assert lines[3].endswith("1 min ago")
