"""How a job ended, for a program: an outcome or an exception, and an exit code."""

from __future__ import annotations

import signal

from gpulayer.client.errors import JobCancelled, JobFailed, JobRejected
from gpulayer.protocol.types import JobView, Outcome, State
from gpulayer.words import failure, held_back, reasons

FAILED = 1
REJECTED = 69  # EX_UNAVAILABLE
UNREACHABLE = 75  # EX_TEMPFAIL
REFUSED = 77  # EX_NOPERM
_SIGNALLED = 128


def judged(job: JobView) -> Outcome:
    """The outcome of a job that succeeded. Raises `JobFailed`, `JobCancelled` or `JobRejected` for any other end."""
    if job.state is State.SUCCEEDED:
        return job.outcome or Outcome(state=State.SUCCEEDED)
    if job.state is State.REJECTED:
        why = "; ".join(reasons(job)) + (f" (nearest: {job.nearest})" if job.nearest else "")
        text = f"job {job.id} was not started" if held_back(job) else f"no machine could run job {job.id}"
        raise JobRejected(text + (f": {why}" if why else ""), job)
    why = failure(job)
    if job.state is State.CANCELLED:
        raise JobCancelled(f"job {job.id} was cancelled" + (f": {why}" if why else ""), job)
    where = f" on {job.worker}" if job.worker else ""
    raise JobFailed(f"job {job.id} failed{where}: {why or 'no reason was given'}", job)


def exit_code(job: JobView) -> int:
    """What a shell is told of a job that has ended.

    The program's own code, or 128 and its signal; where there is none, or it says 0 of what did not succeed, a code of
    ours.
    """
    outcome = job.outcome
    if job.state is State.SUCCEEDED:
        return 0
    if job.state is State.REJECTED:
        return FAILED if held_back(job) else REJECTED
    if outcome is not None and outcome.exit_code:
        return outcome.exit_code & 0xFF or FAILED
    if outcome is not None and outcome.signal:
        return _SIGNALLED + outcome.signal
    return _SIGNALLED + signal.SIGTERM if job.state is State.CANCELLED else FAILED
