"""What can be asked of a control plane by HTTP, for whoever carries it: the blocking client and the awaitable one."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import msgspec

from gpulayer.client.errors import ControlPlaneError, GpulayerError, RequestRefused
from gpulayer.client.explanation import Explanation
from gpulayer.protocol.calls import MapView
from gpulayer.protocol.types import (
    AttemptView,
    JobSpec,
    JobView,
    Problem,
    Requirements,
    SessionView,
    Struct,
    TaskView,
    WorkerView,
)

T = TypeVar("T")

BATCH_JOBS = 10_000
"""Jobs of one request at most."""

BATCH_BYTES = 32_000_000
"""Of one request that brings many jobs, unless one alone is larger."""

LONGEST_WAIT_S = 60.0
"""So long a control plane holds a request that waits for a job's end."""

AWAY = frozenset({502, 503, 504})
"""With these a proxy answers before a control plane that does not."""


class Output(Struct, frozen=True, kw_only=True):
    """A file that a task left."""

    index: int
    path: str
    size: int
    sha256: str
    mode: int = 0o644
    raw: bytes = b""  # the path's bytes where they are not UTF-8: `path` is how it may be shown then

    @property
    def name(self) -> str:
        """The path for functions of `os`."""
        return self.raw.decode(errors="surrogateescape") if self.raw else self.path


class TokenView(Struct, frozen=True, kw_only=True):
    """A token that was given out; times are Unix seconds. Its text is known to nobody any more."""

    id: str
    role: str
    name: str = ""
    state: str = ""  # active, used, expired, revoked
    created_at: float = 0.0
    expires_at: float | None = None
    single_use: bool = False
    used_at: float | None = None
    used_by: str | None = None  # the name of the worker that used it last
    worker_id: str | None = None
    issued_by: str | None = None  # of a worker's credential: the id of the join token that it was given for
    revoked_at: float | None = None
    max_running: int | None = None  # of its owner's tasks that run at once; None: no limit
    max_devices: int | None = None  # that these may hold at once


class NewToken(Struct, frozen=True, kw_only=True):
    """A token that was just made: the only time that its text is seen."""

    id: str
    token: str
    role: str = ""
    name: str = ""
    expires_at: float | None = None
    single_use: bool = False
    max_running: int | None = None
    max_devices: int | None = None


class Listening(Struct, frozen=True, kw_only=True):
    """Where a control plane listens for other machines, and by which fingerprint they know it; '' and 0 if nowhere."""

    host: str = ""
    port: int = 0
    fingerprint: str = ""


class Submission(Struct, frozen=True, kw_only=True):
    """A job with the key that makes sending it twice one job."""

    key: str
    spec: JobSpec


class _Batch(Struct, frozen=True, kw_only=True):
    jobs: list[str]


class Away(Exception):
    """Somebody answered for a control plane that does not."""


@dataclass(frozen=True, kw_only=True)
class Ask(Generic[T]):
    """One request and the type of its answer."""

    method: str
    path: str
    kind: Any  # None: no answer; bytes: as it is
    content: bytes | None = None
    takes_s: float = 0.0  # so long the answer may be held back
    again: bool = True  # asked twice, it does no more than once

    def answer(self, status: int, content: bytes) -> T:
        """The answer typed. Raises `Away`, `RequestRefused`, `ControlPlaneError` for what is none."""
        if status in AWAY:
            raise Away(f"HTTP {status}")
        if status >= 400:
            raise refusal(status, content)
        if self.kind is None:
            return cast("T", None)
        if self.kind is bytes:
            return cast("T", content)
        try:
            return msgspec.json.decode(content, type=self.kind)
        except msgspec.MsgspecError as error:
            raise ControlPlaneError(f"{self.method} {self.path} was answered by no control plane: {error}") from error


def refusal(status: str | int, content: bytes, what: str = "") -> GpulayerError:
    """What an answer that refuses says; `what` was refused: 'the files were '."""
    try:
        return RequestRefused(msgspec.json.decode(content, type=Problem))
    except msgspec.MsgspecError:  # a proxy's page
        return ControlPlaneError(f"{what}refused: {status}, not by a control plane")


def _quoted(text: str) -> str:
    return urllib.parse.quote(text, safe="")


def _query(values: Mapping[str, object]) -> str:
    query = urllib.parse.urlencode({name: value for name, value in values.items() if value not in (None, "")})
    return f"?{query}" if query else ""


def _body(value: object) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError as error:
        what = error.object[max(0, error.start - 20) : error.end + 20]
        raise GpulayerError(f"{what!r} holds bytes that are not UTF-8 and can't be sent; name it otherwise") from error


# ---------------------------------------------------------------- jobs


def submit(key: str, spec: JobSpec) -> Ask[JobView]:
    """A new job, or the one that this key made."""
    return Ask(method="POST", path="/v1/jobs", kind=JobView, content=_body(Submission(key=key, spec=spec)))


def in_batches(jobs: Iterable[Submission]) -> Iterator[list[msgspec.Raw]]:
    """Jobs, encoded, in parts of which each goes into one request. Raises `GpulayerError` for what can't be sent."""
    part: list[msgspec.Raw] = []
    size_bytes = 0
    for job in jobs:
        encoded = msgspec.Raw(_body(job))
        count = len(encoded)
        if part and (len(part) == BATCH_JOBS or size_bytes + count > BATCH_BYTES):
            yield part
            part, size_bytes = [], 0
        part.append(encoded)
        size_bytes += count
    if part:
        yield part


def submit_batch(jobs: Sequence[Submission] | Sequence[msgspec.Raw]) -> Ask[_Batch]:
    """Many new jobs, all or none; the answer has their ids in order."""
    return Ask(method="POST", path="/v1/jobs/batch", kind=_Batch, content=_body({"jobs": jobs}), takes_s=60.0)


def jobs(
    limit: int = 50,
    *,
    state: str = "",
    label: str = "",
    name: str = "",
    owner: str = "",
    before: str = "",
) -> Ask[list[JobView]]:
    """The last jobs, newest first; `label` is 'k' or 'k=v', `before` the id of a job."""
    query = _query({"limit": limit, "state": state, "label": label, "name": name, "owner": owner, "before": before})
    return Ask(method="GET", path=f"/v1/jobs{query}", kind=list[JobView])


def job(job_id: str, *, wait_s: float = 0.0) -> Ask[JobView]:
    """One job; with `wait_s` once it has ended, at the latest after that."""
    query = _query({"wait": f"{wait_s:.3f}" if wait_s else None})
    return Ask(method="GET", path=f"/v1/jobs/{_quoted(job_id)}{query}", kind=JobView, takes_s=wait_s)


def tasks(job_id: str) -> Ask[list[TaskView]]:
    """The tasks of a job."""
    return Ask(method="GET", path=f"/v1/jobs/{_quoted(job_id)}/tasks", kind=list[TaskView])


def attempts(job_id: str, index: int | None = None) -> Ask[list[AttemptView]]:
    """The attempts of a job, or of one task."""
    return Ask(
        method="GET", path=f"/v1/jobs/{_quoted(job_id)}/attempts{_query({'index': index})}", kind=list[AttemptView]
    )


def states(job_ids: list[str]) -> Ask[dict[str, str]]:
    """The states of at most `BATCH_JOBS` jobs."""
    return Ask(method="POST", path="/v1/jobs/states", kind=dict[str, str], content=_body({"jobs": job_ids}))


def cancel(job_id: str, *, give_up: bool = False) -> Ask[JobView]:
    """A wish to cancel."""
    path = f"/v1/jobs/{_quoted(job_id)}/cancel"
    return Ask(method="POST", path=path, kind=JobView, content=_body({"give_up": give_up}))


def outputs(job_id: str) -> Ask[list[Output]]:
    """The files that its tasks left."""
    return Ask(method="GET", path=f"/v1/jobs/{_quoted(job_id)}/outputs", kind=list[Output])


def logs(job_id: str, *, index: int | None = None, stream: str = "", tail_bytes: int | None = None) -> Ask[bytes]:
    """What a task wrote so far."""
    query = _query({"index": index, "stream": stream, "tail": tail_bytes})
    return Ask(method="GET", path=f"/v1/jobs/{_quoted(job_id)}/logs{query}", kind=bytes, takes_s=60.0)


def explain(requirements: Requirements, *, wait_for_worker: bool = False) -> Ask[Explanation]:
    """Where a job would run now, or why it would not."""
    body = _body({"requirements": requirements, "wait_for_worker": wait_for_worker})
    return Ask(method="POST", path="/v1/explain", kind=Explanation, content=body)


# ---------------------------------------------------------------- maps


def map_view(map_id: str) -> Ask[MapView]:
    """A map of calls, which may be one call."""
    return Ask(method="GET", path=f"/v1/maps/{_quoted(map_id)}", kind=MapView)


def maps(job_id: str, limit: int = 50, *, before: int | None = None) -> Ask[list[MapView]]:
    """The maps of a job, newest first; `before`: those of smaller numbers."""
    query = _query({"job": job_id, "limit": limit, "before": before})
    return Ask(method="GET", path=f"/v1/maps{query}", kind=list[MapView])


def cancel_map(map_id: str) -> Ask[MapView]:
    """A wish to end one."""
    return Ask(method="POST", path=f"/v1/maps/{_quoted(map_id)}/cancel", kind=MapView)


# ---------------------------------------------------------------- machines, sessions, tokens


def workers() -> Ask[list[WorkerView]]:
    """Every known worker."""
    return Ask(method="GET", path="/v1/workers", kind=list[WorkerView])


def sessions() -> Ask[list[SessionView]]:
    """Open sessions."""
    return Ask(method="GET", path="/v1/sessions", kind=list[SessionView])


def release(name: str) -> Ask[None]:
    """Let a session go."""
    return Ask(method="DELETE", path=f"/v1/sessions/{_quoted(name)}", kind=None, again=False)


def listening() -> Ask[Listening]:
    """Where it listens for other machines."""
    return Ask(method="GET", path="/v1/listen", kind=Listening)


def tokens() -> Ask[list[TokenView]]:
    """The tokens that were given out."""
    return Ask(method="GET", path="/v1/tokens", kind=list[TokenView])


def new_token(
    role: str,
    *,
    name: str = "",
    expires_s: float | None = None,
    single_use: bool = False,
    max_running: int | None = None,
    max_devices: int | None = None,
) -> Ask[NewToken]:
    """A new token; its owner's tasks that run at once, and the devices that they hold, may have limits."""
    body: dict[str, object] = {"role": role, "name": name, "expires_s": expires_s, "single_use": single_use}
    limits = {"max_running": max_running, "max_devices": max_devices}
    body |= {limit: most for limit, most in limits.items() if most is not None}
    return Ask(method="POST", path="/v1/tokens", kind=NewToken, content=_body(body), again=False)


def revoke(name: str, *, workers: bool = False) -> Ask[None]:
    """End a token, by its id or name; with `workers` the credentials too that were given for it."""
    query = _query({"workers": "true" if workers else None})
    return Ask(method="DELETE", path=f"/v1/tokens/{_quoted(name)}{query}", kind=None, again=False)


def parts(job_ids: Iterable[str]) -> list[list[str]]:
    """Ids in parts that one request may hold."""
    ids = list(job_ids)
    return [ids[begin : begin + BATCH_JOBS] for begin in range(0, len(ids), BATCH_JOBS)]
