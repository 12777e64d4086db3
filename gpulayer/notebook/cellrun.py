"""From a cell to its job, and from the job's stream back into the cell."""

from __future__ import annotations

import secrets
import sys
import time
from typing import Any

from msgspec.structs import replace

from gpulayer.client.connection import Connection, Subscription
from gpulayer.client.errors import (
    ControlPlaneError,
    JobCancelled,
    JobError,
    JobRejected,
    RequestRefused,
    interrupted,
)
from gpulayer.notebook.comms import Far
from gpulayer.notebook.folder import Source, notebook_path
from gpulayer.notebook.options import CellOptions
from gpulayer.notebook.replay import Replay, cell_number
from gpulayer.notebook.results import Results
from gpulayer.notebook.status import StatusLine
from gpulayer.notebook.stop import Stop
from gpulayer.notebook.values import Values
from gpulayer.protocol.failpoints import reach
from gpulayer.protocol.messages import Chunk, Refused, ServerToClient, Update
from gpulayer.protocol.types import CellSpec, JobSpec, JobView, Outcome, Problem, State
from gpulayer.source import Bundle
from gpulayer.source.leftout import why_missing
from gpulayer.words import program_end

_LOOK_S = 0.2  # how often the elapsed time and an interrupt are looked at; messages come at once
_REMEMBERED = 20  # jobs that did not succeed yet, of which it is known what travelled
SESSION_IDLE_S = 1800.0  # a session's kernel is kept for so long without a cell, unless a person says otherwise


class CellRunner:
    """Submits cells and follows jobs, over one connection."""

    def __init__(self, connection: Connection, source: Source):
        self.connection = connection
        self._source = source
        self._results = Results(connection, source)
        self._bundles: dict[str, Bundle] = {}  # what travelled with the last jobs, for the words of a failure

    def submit(
        self, shell: Any, line: str, body: str, options: CellOptions, status: StatusLine, stop: Stop
    ) -> Subscription:
        """Scan, send what lacks, submit. Returns once the control plane has the job; `stop` is armed then."""
        values = Values.of(options.inputs, shell.user_ns) if options.inputs else None
        sent_at_ns = time.time_ns()
        bundle = self._source.scan(
            options.source,
            include=options.include,
            exclude=options.exclude,
            limits=options.limits,
            inputs=options.files,
        )
        spec = self._spec(shell, line, body, options, bundle, values.digest if values is not None else "")
        key = secrets.token_hex(12)
        subscription, problem = self._submit(spec, key, status, stop)
        if problem is not None and problem.code == "bundle_unknown":
            stop.disarm()
            endpoint = self.connection.endpoint
            if endpoint is None:
                raise ControlPlaneError("the control plane went away while the files were sent; run the cell again")
            status.sent = self._source.send(bundle, endpoint, status.note)
            reach("client.bundle-sent")
            subscription, problem = self._submit(spec, key, status, stop)
        if problem is not None and problem.code == "inputs_unknown" and values is not None:
            stop.disarm()
            values.send(self.connection, status.note)
            reach("client.values-sent")
            subscription, problem = self._submit(spec, key, status, stop)
        if problem is not None:
            raise RequestRefused(problem)
        bundle.contents.clear()
        self._remember(subscription.job, bundle)
        if spec.cell is not None and (options.outputs or options.output_globs):
            self._results.expect(subscription.job, spec.cell, bundle, sent_at_ns)
        reach("client.submitted")
        return subscription

    def _remember(self, job: str, bundle: Bundle) -> None:
        while len(self._bundles) >= _REMEMBERED:
            self._bundles.pop(next(iter(self._bundles)))
        self._bundles[job] = bundle

    def _spec(self, shell: Any, line: str, body: str, options: CellOptions, bundle: Bundle, inputs: str) -> JobSpec:
        empty = not bundle.manifest.files
        path = notebook_path(getattr(shell, "user_ns", {}))
        parent = shell.get_parent() if hasattr(shell, "get_parent") else {}
        return JobSpec(
            cell=CellSpec(
                code=numbered_like_home(line, body),
                bundle="" if empty else bundle.manifest.digest,
                session=options.session,
                execution_count=cell_number(shell),
                idle_timeout_s=options.idle_timeout_s or SESSION_IDLE_S,
                inputs=inputs,
                outputs=options.outputs,
                output_globs=options.output_globs,
            ),
            requirements=options.requirements,
            name=options.name or (f"cell, {path.name}" if path else "cell"),
            timeout_s=options.timeout_s,
            wait_for_worker=options.wait_for_worker,
            notebook=str(path or ""),
            cell_id=(parent.get("metadata") or {}).get("cellId", "") if parent else "",
        )

    def _submit(self, spec: JobSpec, key: str, status: StatusLine, stop: Stop) -> tuple[Subscription, Problem | None]:
        """Submit; with the problem, where it was not taken."""
        stop.arm()
        subscription = self.connection.submit(spec, key)
        stop.watch(subscription)
        try:
            problem = self._first_answer(subscription, status, stop)
        except BaseException:
            self.connection.unfollow(subscription)
            raise
        if problem is not None:
            self.connection.unfollow(subscription)
        return subscription, problem

    def _first_answer(self, subscription: Subscription, status: StatusLine, stop: Stop) -> Problem | None:
        """None once the job is taken, else the problem. What came of the job is left to be taken again."""
        waited = 0.0
        came: list[ServerToClient] = []
        while True:
            if stop.urgent or (stop.wanted and not self.connection.wait_ready(0)):
                raise interrupted()  # nobody is there to be told
            message = subscription.get(_LOOK_S)
            if isinstance(message, Refused):
                return message.problem
            came += [message] if message is not None else []
            if isinstance(message, Update):
                status.show(message.job)
                subscription.give_back(came)
                return None
            waited += _LOOK_S
            if message is None and waited >= 1.0 and not self.connection.wait_ready(0):
                status.note(f"◐ waiting for the control plane · {self.connection.away or 'starting it'}")

    def follow(self, shell: Any, subscription: Subscription, status: StatusLine, max_output_bytes: int,
               stop: Stop, *, cancels: bool) -> JobView:  # fmt: skip
        """Replay until the job is over; raises what the cell raised, or why the job did not succeed.

        Where Stop `cancels`, the job is cancelled and shown until it has ended; else KeyboardInterrupt is raised.
        """
        far = Far(self.connection, subscription.job)
        replay = Replay(shell, subscription.job, max_output_bytes, on_clear=status.again, far=far)
        early = cancels and not self._results.expected(subscription.job)
        following = _Following(self.connection, subscription, replay, status, early=early)
        try:
            while following.view is None or not following.view.terminal:
                if stop.urgent or (stop.wanted and not cancels):
                    raise interrupted()
                if stop.wanted and not following.cancelling:
                    following.stop(stop)
                following.step()
        finally:
            replay.finish()
            self.connection.unfollow(subscription)
        if following.view is not None and self._results.wanted(following.view):
            self._results.take(shell, following.view, status, stop, told=not cancels)
        self._explain(replay, subscription.job)
        view = judge(following.view, replay)
        self._bundles.pop(subscription.job, None)
        return view

    def _explain(self, replay: Replay, job: str) -> None:
        """Say of an error what is known here of its cause: a file that did not travel."""
        error, bundle = replay.error, self._bundles.get(job)
        if error is None or bundle is None:
            return
        error.hint = why_missing(bundle, f"{error.ename}: {error.evalue}")
        if error.hint and error.shown:  # it is raised without a word
            sys.stderr.write(f"gpulayer: {error.hint}\n")


class _Following:
    """The state of one replay."""

    def __init__(
        self, connection: Connection, subscription: Subscription, replay: Replay, status: StatusLine, *, early: bool
    ):
        self._connection = connection
        self._subscription = subscription
        self._replay = replay
        self._status = status
        self._attempt: str | None = None
        self._unshown: JobView | None = None
        self._shown_at = 0.0
        self._began = time.monotonic()
        self._early = early  # under attach the whole time of the job is not known here
        self.view: JobView | None = None
        self.cancelling = False

    def step(self) -> None:
        """Take one message, or look at the clock."""
        message = self._subscription.get(_LOOK_S)
        if message is None:
            self._quiet()
            return
        if isinstance(message, Chunk):
            if message.attempt != self._attempt and self._attempt is not None:
                self._replay.restart()
            self._attempt = message.attempt
            self._replay.feed(message.data)
            self._end_early()
            reach("client.first-byte" if message.offset == 0 else "client.mid-output")
        elif isinstance(message, Update):
            self.view = self._unshown = message.job
            self._replay.belongs(message.job)
        elif isinstance(message, Refused):
            raise RequestRefused(message.problem)
        if self._due():
            self._show()

    def _end_early(self) -> None:
        """A cell whose reply is well ends at its idle record: that is in the stream for good, and decides the rest.

        The control plane's own word for it comes a commit later.
        """
        view = self.view
        if (
            not self._early
            or view is None
            or view.terminal
            or view.attempt != self._attempt
            or not self._replay.succeeded
        ):
            return
        reply = self._replay.reply or {}
        outcome = Outcome(
            state=State.SUCCEEDED,
            peak_rss_bytes=reply.get("peak_rss_bytes"),
            peak_device_bytes=reply.get("peak_device_bytes"),
        )
        began = view.started_at or view.submitted_at
        ended_at = began + time.monotonic() - self._began
        self._subscription.over = True  # the control plane ends it by itself, with the job: nothing need be said
        self.view = self._unshown = replace(
            view, state=State.SUCCEEDED, cancelling=False, started_at=began, ended_at=ended_at, outcome=outcome
        )

    def _due(self) -> bool:
        """Whether people are to see what came: nothing more waits, it is over, or they saw nothing for a while."""
        over = self.view is not None and self.view.terminal
        return over or self._subscription.empty() or time.monotonic() - self._shown_at >= _LOOK_S

    def _show(self) -> None:
        """Of states that came together people see the last."""
        self._shown_at = time.monotonic()
        self._replay.flush()
        if self._unshown is None:
            self._status.tick()
            return
        if self._unshown.terminal:
            self._replay.finish()
        self._status.show(self._unshown)
        self._unshown = None

    def _quiet(self) -> None:
        if self._connection.away and not self._connection.wait_ready(0):
            self._status.note(f"◌ control plane out of reach, the job goes on · job {self._subscription.job}")
        else:
            self._status.tick()

    def stop(self, stop: Stop) -> None:
        """Stop there; where it is the kernel here that ends, the job goes on, and KeyboardInterrupt is raised."""
        if self.view is not None:
            self._status.show(replace(self.view, cancelling=True))
        if stop.kernel_ends():
            job = self._subscription.job
            self._status.note(f"◌ the notebook's kernel ended, the job goes on: %gpulayer attach {job} · job {job}")
            raise interrupted()
        self.cancelling = True
        self._connection.cancel(self._subscription)


def numbered_like_home(line: str, body: str) -> str:
    """The cell's body, its lines numbered as in the notebook: the magic's own line becomes a comment.

    A body that begins with another cell magic has to begin with it there too.
    """
    if body.lstrip().startswith("%%"):
        return body
    first = next((each for each in body.splitlines() if each.strip()), "")
    indent = first[: len(first) - len(first.lstrip())]  # IPython takes the first line's away from all lines
    return f"{indent}# %%gpulayer {line}\n{body}"


def judge(view: JobView | None, replay: Replay) -> JobView:
    """The job if it succeeded; else the exception that says why not."""
    if view is None:
        raise ControlPlaneError("the job's end was not seen")
    if view.state is State.SUCCEEDED:
        return view
    if view.state is State.REJECTED:
        raise JobRejected("no eligible worker", view)
    outcome = view.outcome
    if replay.error is not None and not (outcome and outcome.problem):
        raise replay.error
    why = (outcome.problem or outcome.error or program_end(outcome)) if outcome else ""
    if view.state is State.CANCELLED:
        raise JobCancelled(f"job {view.id} was cancelled" + (f": {why}" if why else ""), view)
    raise JobError(f"job {view.id} failed on {view.worker}: {why or 'no reason was given'}", view, replay.error)
