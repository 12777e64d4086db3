"""How a job ended, for a program."""

from __future__ import annotations

import pytest

from gpulayer.client.ending import exit_code, judged
from gpulayer.client.errors import JobCancelled, JobFailed, JobRejected
from gpulayer.protocol.types import JobView, Outcome, Reason, State


def ended(state: State, *, reasons: tuple[Reason, ...] = (), **outcome: object) -> JobView:
    known = Outcome(state=state, **outcome) if outcome else None  # type: ignore[arg-type]
    return JobView(id="k3f9", state=state, worker="box", outcome=known, reasons=reasons)


AFTER = Reason(worker="", code="after", text="it was to run after a81c had succeeded")
NO_CUDA = Reason(worker="box", code="device_kind", text="no cuda")


@pytest.mark.parametrize(
    ("job", "code"),
    [
        (ended(State.SUCCEEDED, exit_code=0), 0),
        (ended(State.FAILED, exit_code=7), 7),
        (ended(State.FAILED, exit_code=256), 1),
        (ended(State.FAILED, exit_code=0, problem="the files could not be sent"), 1),
        (ended(State.FAILED, signal=9), 137),
        (ended(State.FAILED, problem="exit unknown"), 1),
        (ended(State.FAILED), 1),
        (ended(State.CANCELLED), 143),
        (ended(State.CANCELLED, exit_code=3), 3),
        (ended(State.REJECTED, reasons=(NO_CUDA,)), 69),
        (ended(State.REJECTED, reasons=(AFTER,)), 1),
    ],
)
def test_exit_codes(job: JobView, code: int) -> None:
    assert exit_code(job) == code


def test_what_is_raised() -> None:
    assert judged(ended(State.SUCCEEDED, exit_code=0)).exit_code == 0
    assert judged(ended(State.SUCCEEDED)).state is State.SUCCEEDED
    with pytest.raises(JobFailed, match="job k3f9 failed on box: exit code 7"):
        judged(ended(State.FAILED, exit_code=7))
    with pytest.raises(JobFailed, match="job k3f9 failed on box: ended by SIGKILL"):
        judged(ended(State.FAILED, signal=9))
    with pytest.raises(JobFailed, match="no reason was given"):
        judged(ended(State.FAILED))
    with pytest.raises(JobCancelled, match="job k3f9 was cancelled"):
        judged(ended(State.CANCELLED))
    with pytest.raises(JobRejected, match="no machine could run job k3f9: box: no cuda"):
        judged(ended(State.REJECTED, reasons=(NO_CUDA,)))
    with pytest.raises(JobRejected, match="job k3f9 was not started: it was to run after a81c"):
        judged(ended(State.REJECTED, reasons=(AFTER,)))
