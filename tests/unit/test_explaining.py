"""Why a job fits or does not, in plain text."""

from __future__ import annotations

import pytest

from gpulayer.explaining import explanation_lines, reason_table, why_table
from gpulayer.protocol.types import Device, Explanation, JobView, Placement, Reason, State
from gpulayer.tables import letters

COUNT = Reason(worker="gpu-box-1", code="device_count", text="needs 2 usable cuda devices, worker has 1")
JAX = Reason(worker="mac-studio", code="framework", text="framework 'jax' not installed")
OLD = Reason(
    worker="laptop",
    code="framework_device",
    text="torch on this worker cannot use CUDA: driver version is insufficient (driver 12.2, torch built for 13.0)",
)
DEVICES = tuple(Device(uuid=f"u{n}", kind="cuda", index=n, name="NVIDIA A100") for n in range(2))


def test_the_table_of_a_rejected_one() -> None:
    explanation = Explanation(
        placement=Placement.REJECTED, reasons=(COUNT, JAX, OLD), nearest="install jax[cuda13] on gpu-box-2"
    )
    assert explanation_lines(explanation, 150) == [
        "scheduling: no eligible worker",
        "  gpu-box-1   needs 2 usable cuda devices, worker has 1",
        "  mac-studio  framework 'jax' not installed",
        f"  laptop      {OLD.text}",
        "nearest: install jax[cuda13] on gpu-box-2",
    ]


def test_every_reason_of_a_worker_stands_below_its_first_one() -> None:
    more = (COUNT, Reason(worker="gpu-box-1", code="ram", text="needs 64 GB\nof RAM, worker has 32 GB"), JAX)
    assert reason_table(more) == [
        "  gpu-box-1   needs 2 usable cuda devices, worker has 1",
        "              needs 64 GB of RAM, worker has 32 GB",
        "  mac-studio  framework 'jax' not installed",
    ]


def test_a_long_reason_stays_in_its_column() -> None:
    lines = reason_table((JAX, OLD), width=60)
    assert max(map(letters, lines)) <= 60
    assert lines[1].startswith("  laptop      torch on this worker")
    assert all(line.startswith(" " * 16) for line in lines[2:])
    assert " ".join(" ".join(lines[1:]).split()) == f"laptop {OLD.text}"


LIMIT = Reason(worker="", code="limit", text="ana holds 1 of 1", temporary=True)


@pytest.mark.parametrize(
    ("explanation", "head"),
    [
        (Explanation(placement=Placement.PLACED), "eligible now"),
        (
            Explanation(placement=Placement.PLACED, eligible=("a",), chosen=("a", "b"), devices=DEVICES),
            "eligible now, it would run on a, b · cuda:0,1 A100",
        ),
        (Explanation(placement=Placement.WAITING), "it would wait for a worker"),
        (
            Explanation(placement=Placement.WAITING, eligible=("a", "b"), reasons=(LIMIT,)),
            "it would wait until the token's limit allows more",
        ),
        (Explanation(placement=Placement.WAITING, eligible=("a",)), "it would wait, the eligible worker is busy"),
        (
            Explanation(placement=Placement.WAITING, eligible=("a", "b")),
            "it would wait, all 2 eligible workers are busy",
        ),
        (
            Explanation(
                placement=Placement.WAITING,
                eligible=("a",),
                reasons=(Reason(worker="", code="nodes", text="needs 2 machines at once", temporary=True),),
            ),
            "it would wait for more workers",
        ),
        (Explanation(placement=Placement.REJECTED), "no eligible worker"),
        (Explanation(placement=Placement.REJECTED, eligible=("a",)), "not enough eligible workers, only 1"),
        (Explanation(placement=Placement.REJECTED, eligible=("a", "b")), "no set of workers fits, 2 do by themselves"),
    ],
)
def test_the_first_line_says_what_would_become_of_it(explanation: Explanation, head: str) -> None:
    assert explanation_lines(explanation)[0] == f"scheduling: {head}"


def test_eligible_workers_are_rows_and_busy_ones_say_why() -> None:
    busy = Reason(worker="b", code="devices_busy", text="cuda:0 busy: train.py by ana, 14 min", temporary=True)
    explanation = Explanation(placement=Placement.PLACED, eligible=("a", "b"), chosen=("a",), reasons=(busy,))
    assert explanation_lines(explanation)[1:] == ["  b  cuda:0 busy: train.py by ana, 14 min", "  a  eligible"]


def test_what_is_nobodys_stands_first() -> None:
    nobodys = Reason(worker="", code="worker_unknown", text="no worker is named 'boxx'; did you mean boxb?")
    assert reason_table((COUNT, nobodys)) == [
        "  no worker is named 'boxx'; did you mean boxb?",
        "  gpu-box-1  needs 2 usable cuda devices, worker has 1",
    ]


def test_of_many_machines_alike_ones_share_a_row() -> None:
    reasons = [Reason(worker=f"box-{n}", code="device_kind", text="no cuda device") for n in range(40)]
    reasons.append(Reason(worker="box-7", code="ram", text="too little RAM"))
    assert reason_table(reasons) == [
        "  box-0, box-1 and 37 more  no cuda device",
        "  box-7                     no cuda device",
        "                            too little RAM",
    ]


def test_a_row_of_many_has_room_for_one_name_at_least() -> None:
    reasons = [Reason(worker=f"{'long-' * 5}name-{n}", code="device_kind", text="no cuda device") for n in range(40)]
    [line] = reason_table(reasons)
    assert line == "  long-long-…ng-name-0 and 39 more  no cuda device"
    assert letters(line.partition("  no cuda")[0]) <= 34


def test_of_a_job_those_of_another_name_are_left_out() -> None:
    named = Reason(worker="a", code="worker_name", text="is not 'b'")
    busy = Reason(worker="b", code="slots", text="all 2 slots busy", temporary=True)
    job = JobView(id="k3f9", state=State.QUEUED, reasons=(named, busy))
    assert why_table(job) == ["  b  all 2 slots busy"]
    assert why_table(JobView(id="k3f9", state=State.QUEUED, reasons=(named,))) == ["  a  is not 'b'"]
    assert why_table(JobView(id="k3f9", state=State.QUEUED)) == []


def test_what_machines_are_called_commands_no_terminal() -> None:
    [line] = reason_table([Reason(worker="a\x1b[2J", code="x", text="b\x1b[2J")])
    assert "\x1b" not in line
