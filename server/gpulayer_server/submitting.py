"""How jobs come in: checked, found again by their keys, taken one by one or many at once."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from gpulayer.protocol.failpoints import reach
from gpulayer.protocol.types import JobSpec, Problem
from gpulayer.source import BlobError
from gpulayer_server.core.checking import problem_of
from gpulayer_server.core.events import Submission, Submitted, SubmittedBatch
from gpulayer_server.core.jobs import key_conflict

if TYPE_CHECKING:
    from gpulayer_server.shell import BatchReply, Reply, Shell

MOST_JOBS = 10_000
"""In one batch."""

_SLICE = 250  # jobs that are looked at in one turn of the loop: some milliseconds
log = logging.getLogger("gpulayer.server")
_NO_KEY = Problem(
    status=400, code="bad_request", title="a job needs an idempotency key", detail="any text that names it alone"
)
_pack = msgspec.msgpack.Encoder().encode


def submit(shell: Shell, owner: str, key: str, spec: JobSpec, reply: Reply) -> None:
    """Take a job, or find the one that its key made, live or of the past."""
    if (owner, key) in shell.coming:
        shell.coming[(owner, key)].append(lambda: submit(shell, owner, key, spec, reply))
        return
    problem = (_NO_KEY if not key else None) or problem_of(spec) or lacking(shell, [spec])
    if problem is not None:
        reply(problem)
        return
    reach("server.bundle-sent")
    submission = _submission(key, spec)
    known = shell.stored_by_key(owner, key)
    if known is not None:
        same = known.payload_hash == submission.payload_hash
        reply(shell.history_view(known) if same else key_conflict(key, known.id))
        return
    ended = shell.ends_of(spec.after)
    shell.request(lambda request: Submitted(request=request, owner=owner, submission=submission, ended=ended), reply)


def _submission(key: str, spec: JobSpec) -> Submission:
    return Submission(key=key, payload_hash=hashlib.sha256(_pack(spec)).hexdigest(), spec=spec)


class Batch:
    """Many jobs of one owner on their way in: all are looked at, then all are taken, some in each turn of the loop.

    What its keys make is decided here alone until it is over: a job that comes meanwhile with one of them waits.
    """

    def __init__(self, shell: Shell, owner: str, jobs: Sequence[tuple[str, JobSpec]], reply: BatchReply):
        self._shell = shell
        self._owner = owner
        self._jobs = jobs
        self._reply = reply
        self._known: dict[str, str] = {}  # by key: jobs of the past
        self._submissions: list[Submission] = []
        self._hashes: dict[str, str] = {}  # by key
        self._names: list[str] = []

    async def run(self) -> None:
        """Answer, once."""
        coming = self._shell.coming
        keys = {(self._owner, key) for key, _ in self._jobs}
        coming.update((key, []) for key in keys)
        try:
            result = await self._problem() or await self._take()
        except Exception as error:
            log.exception("a batch of %d jobs could not be taken", len(self._jobs))
            result = Problem(status=500, code="error", title="the batch could not be taken", detail=str(error))
        waiting = [again for key in keys for again in coming.pop(key)]
        self._reply(result)
        for again in waiting:
            again()

    async def _problem(self) -> Problem | None:
        """What keeps any of them from being taken."""
        for first in range(0, len(self._jobs), _SLICE):
            part = self._jobs[first : first + _SLICE]
            problem = self._problem_of(part)
            if problem is not None:
                return problem
            await asyncio.sleep(0)
        return None

    def _problem_of(self, part: Sequence[tuple[str, JobSpec]]) -> Problem | None:
        shell, owner = self._shell, self._owner
        for at, (_, spec) in enumerate(part, len(self._submissions)):
            problem = problem_of(spec)
            if problem is not None:
                return msgspec.structs.replace(problem, title=f"job {at} of the batch: {problem.title}")
        lacks = lacking(shell, [spec for _, spec in part])
        if lacks is not None:
            return lacks
        submissions = [_submission(key, spec) for key, spec in part]
        self._submissions += submissions
        stored = shell.stored_by_keys(owner, [key for key, _ in part])
        for each in submissions:
            if self._hashes.setdefault(each.key, each.payload_hash) != each.payload_hash:
                return key_conflict(each.key, "before in this batch")
            live = shell.plane.job_of((owner, each.key))
            name, payload_hash = stored.get(each.key, ("", "")) if live is None else (live.id, live.payload_hash)
            if name and payload_hash != each.payload_hash:
                return key_conflict(each.key, name)
            if name and live is None:
                self._known[each.key] = name
        return self._unknown([spec for _, spec in part])

    def _unknown(self, specs: Iterable[JobSpec]) -> Problem | None:
        """The first job that one of them is to run after, and that is not there."""
        named = dict.fromkeys(name for spec in specs for name in spec.after)
        there = self._shell.states(named) if named else {}
        return next((no_such_job(name) for name in named if name not in there), None)

    async def _take(self) -> list[str] | Problem:
        """Their names, in order. Raises nothing: what could not be written is a problem."""
        loop = asyncio.get_running_loop()
        answers: list[asyncio.Future[tuple[str, ...] | Problem]] = []
        fresh = [each for each in self._submissions if each.key not in self._known]
        for first in range(0, len(fresh), _SLICE):
            part = tuple(fresh[first : first + _SLICE])
            ended = self._shell.ends_of(name for each in part for name in each.spec.after)
            answer = loop.create_future()
            answers.append(answer)
            ask = partial(
                SubmittedBatch, owner=self._owner, submissions=part, more=first + _SLICE < len(fresh), ended=ended
            )
            self._shell.request(lambda n, ask=ask: ask(request=n), answer.set_result)
            self._shell.came()
            await asyncio.sleep(0)
        names: list[str] = []
        for answer in answers:
            result = await answer
            if isinstance(result, Problem):
                return result
            names += result
        made = dict(zip([each.key for each in fresh], names, strict=True)) | self._known
        return [made[each.key] for each in self._submissions]


def too_many(count: int) -> Problem:
    """A batch that is too large."""
    title = f"a batch has {MOST_JOBS:,} jobs at most, this one {count:,}: submit it in parts"
    return Problem(status=400, code="batch_too_large", title=title)


def no_such_job(name: str) -> Problem:
    """A job that another one is to run after is not there."""
    return Problem(status=404, code="no_such_job", title=f"no job {name}, after which it is to run")


def lacking(shell: Shell, specs: Iterable[JobSpec]) -> Problem | None:
    """What has to be sent before the jobs are taken. What is here is kept for them from now on."""
    bundles = {spec.bundle for spec in specs if spec.bundle}
    inputs = {spec.cell.inputs for spec in specs if spec.cell is not None and spec.cell.inputs}
    inputs |= {digest for spec in specs if spec.calls is not None for digest in spec.calls.init_blobs}
    try:
        for bundle in bundles:
            if not shell.blobs.rely(bundle):
                title, detail = "the control plane lacks the source", "send its manifest and blobs first"
                detail = f"bundle {bundle[:12]}…: {detail}"
                return Problem(status=409, code="bundle_unknown", title=title, detail=detail)
    except BlobError as error:
        return _no_digest(error)
    return lacking_blobs(shell, inputs)


def lacking_blobs(shell: Shell, digests: Iterable[str]) -> Problem | None:
    """The same of values."""
    try:
        for digest in digests:
            if not shell.blobs.rely(digest):
                title, detail = "the control plane lacks the values", f"blob {digest[:12]}…: send it first"
                return Problem(status=409, code="inputs_unknown", title=title, detail=detail)
    except BlobError as error:
        return _no_digest(error)
    return None


def _no_digest(error: BlobError) -> Problem:
    title = "bundle or inputs are not named by their digest"
    return Problem(status=400, code="bad_request", title=title, detail=str(error))
