"""What people see of our errors."""

from __future__ import annotations

import pytest

from gpulayer.client.errors import (
    ControlPlaneError,
    GpulayerError,
    JobCancelled,
    JobError,
    JobRejected,
    RemoteError,
    RequestRefused,
)
from gpulayer.explaining import why_table
from gpulayer.protocol.types import JobView, Outcome, Problem, Reason, State

REASONS = (
    Reason(worker="box", code="slots", text="all 2 slots busy", temporary=True),
    Reason(worker="mac-studio", code="device_count", text="no cuda"),
    Reason(worker="box", code="x", text="and more"),
)


def job(**facts: object) -> JobView:
    return JobView(id="k3f9", state=State.FAILED, **facts)  # type: ignore[arg-type]


def test_of_our_errors_one_line_is_shown() -> None:
    assert ControlPlaneError("no one answers")._render_traceback_() == ["gpulayer: no one answers"]


def test_a_refusal_says_what_where_and_what_to_do() -> None:
    problem = Problem(status=409, code="key_conflict", title="this key was used", detail="use a new one")
    error = RequestRefused(problem)
    assert str(error) == "this key was used: use a new one"
    assert error.problem is problem


def test_a_rejected_job_shows_the_table() -> None:
    rejected = job(reasons=REASONS, nearest="install jax[cuda13] on box")
    shown = JobRejected("no eligible worker", rejected)._render_traceback_()
    assert shown == ["gpulayer: no eligible worker", *why_table(rejected)]
    assert shown[-1] == "nearest: install jax[cuda13] on box"


def test_a_dead_process_shows_its_last_lines() -> None:
    outcome = Outcome(state=State.FAILED, tail="\n".join(f"line {n}" for n in range(40)))
    shown = JobError("job k3f9 failed", job(outcome=outcome))._render_traceback_()
    assert shown[:2] == ["gpulayer: job k3f9 failed", "the last lines of its process:"]
    assert shown[-1] == "line 39"
    assert len(shown) < 20


def test_a_remote_exception_shows_as_it_does_there() -> None:
    error = RemoteError.named("OutOfMemoryError", "CUDA out of memory", ["remote", "traceback"])
    assert (type(error).__name__, str(error)) == ("OutOfMemoryError", "CUDA out of memory")
    assert error._render_traceback_() == ["remote", "traceback"]
    assert RemoteError.named("E", "v", [])._render_traceback_() == ["E: v"]


@pytest.mark.parametrize(
    "error",
    [
        ControlPlaneError("x"),
        JobError("x", job()),
        JobRejected("x", job()),
        JobCancelled("x", job()),
        RemoteError.named("E", "v", []),
        RequestRefused(Problem(status=400, code="c", title="t")),
    ],
)
def test_all_of_them_can_be_caught_as_ours(error: Exception) -> None:
    assert isinstance(error, GpulayerError)
    assert not isinstance(error, KeyboardInterrupt)
