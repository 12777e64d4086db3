"""States, and why requirements are not met."""

from __future__ import annotations

from enum import Enum

from gpulayer.protocol.base import Struct


class State(str, Enum):
    """The states of a task; their legal moves stand in `gpulayer_server.core.lifecycle`."""

    QUEUED = "queued"
    ASSIGNED = "assigned"
    RUNNING = "running"
    UNREACHABLE = "unreachable"
    LOST = "lost"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REJECTED = "rejected"


#: States that no task leaves.
TERMINAL = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED, State.REJECTED})


class Reason(Struct, frozen=True, kw_only=True):
    """One unmet constraint of one worker: a code for programs, words with numbers for people."""

    worker: str
    code: str  # the constraint: `gpulayer_server.scheduling.match` lists them
    text: str
    temporary: bool = False  # it may go away by itself: the job waits for it
    wanted: int | float | str | None = None  # what the job asks for: bytes, a count, a version...
    found: int | float | str | None = None  # what the worker has, in the same unit
    remedy: str = ""  # the step that would mend it, such as 'install jax[cuda13] on gpu-box-2'
