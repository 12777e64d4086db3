"""What the plane knows of a map. Only the plane changes it; all of it can be rebuilt from the store's rows."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpulayer.protocol.calls import OK, MapSpec
from gpulayer.protocol.types import Reason, State


@dataclass(kw_only=True, slots=True)
class MapState:
    """A map, as its row has it. `n` is its job's number, `k` its own in that job."""

    n: int
    k: int
    id: str  # 'k3f9.17'
    job: str
    owner: str
    key: str
    spec: MapSpec
    opened_at: float
    total: int | None = None  # None: more calls may come
    taken: int = 0  # calls whose arguments are stored
    done: int = 0  # calls with an accepted result
    failed: int = 0  # of them
    state: State = State.QUEUED  # queued, running, succeeded, failed, cancelled, rejected
    cancel_wanted: bool = False
    started_at: float | None = None
    left_at: float | None = None  # since then its client is away, which has not brought all of its calls
    ended_at: float | None = None
    problem: str = ""
    failed_index: int | None = None
    failed_code: int = OK
    failure: bytes = b""
    reasons: tuple[Reason, ...] = ()
    #: Of a map that lives, when it is rebuilt: what has a result, as (first, count), ascending. Not in its row.
    ranges: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]], compare=False, repr=False)
