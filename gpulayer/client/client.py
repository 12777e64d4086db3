"""`gl.Client`: commands and jobs from a program."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from gpulayer.client import asks
from gpulayer.client.api import Api
from gpulayer.client.asks import Ask, Output, Submission
from gpulayer.client.command import Array, Command, asked
from gpulayer.client.connection import Connection
from gpulayer.client.errors import RequestRefused
from gpulayer.client.explanation import Explanation, settled
from gpulayer.client.finding import Tie, finder
from gpulayer.client.job import Job
from gpulayer.client.sending import Sender, Sent
from gpulayer.client.submission import Input, Source, bundle_of
from gpulayer.client.waiting import Step, all_ended, ended
from gpulayer.placement import Placing, known_keywords, spelled_out
from gpulayer.protocol.types import JobSpec, JobView, State, WorkerView
from gpulayer.source import Bundle

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from gpulayer.client.files import Came

T = TypeVar("T")
Tell = Callable[[str], None]


def _silent(line: str) -> None:
    pass


class Client:
    """Submits commands and looks at jobs.

        with gl.Client() as client:
            job = client.submit(["python", "train.py"], source=".", accelerator="cuda", outputs=["checkpoints/**"])
            for name, data in client.stream(job):
                sys.stdout.buffer.write(data)
            job.result()

    Without arguments it is of this user's control plane, which it starts where none runs; `GPULAYER_URL`,
    `GPULAYER_TOKEN` and `GPULAYER_FINGERPRINT` name another one. Several threads may share it. A control plane that is
    started again is found again, and nothing is done twice.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        fingerprint: str | None = None,
        data: str | Path | None = None,
    ):
        """Nothing is started or asked yet.

        Args:
            url: of a control plane elsewhere, such as 'https://192.168.1.50:8443'; None: see above.
            token: for it.
            fingerprint: of its certificate, 'SHA256:…', compared before the token is sent.
            data: the data folder of a control plane of this machine, in place of the usual one.

        Raises:
            ControlPlaneError: `url` is no address, or there is no token for it.
        """
        self._data = Path(data).expanduser().absolute() if data is not None else None
        self._find = finder(url, token, fingerprint, self._data)
        self.api = Api(find=self._find)
        self._sender: Sender | None = None
        self._connection: Connection | None = None

    # ---------------------------------------------------------------- submit

    @spelled_out
    def submit(
        self,
        argv: Sequence[str] | str,
        *,
        source: str | Path | Source | None = None,
        inputs: Sequence[str | tuple[str | Path, str] | Input] = (),
        outputs: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        retries: int = 0,
        timeout_s: float | None = None,
        grace_s: float = 5.0,
        priority: int = 0,
        name: str = "",
        labels: Mapping[str, str] | None = None,
        key: str | None = None,
        after: Sequence[str | Job] = (),
        array: Array | None = None,
        **placement: Unpack[Placing],
    ) -> Job:
        """Submit a command; returns once the control plane has it.

        Args:
            argv: the program and its arguments; a text is a shell's line.
            source: the folder that travels: the command's own folder there is a copy of it.
            inputs: further files and folders: 'SRC:DST', or (SRC, DST), DST below the command's folder.
            outputs: globs of files that are kept and can be downloaded, like 'checkpoints/**'.
            env: variables of the command.
            cwd: where below its folder it starts.
            retries: how often it is started anew after its machine was lost.
            timeout_s: seconds that it may run.
            grace_s: seconds between SIGTERM and SIGKILL.
            priority: higher ones are placed first.
            name: what it is called in lists; '' for one made of the command.
            labels: for finding it again.
            key: submitted again with the same key it is the same job; None for one that is used once.
            after: jobs that have to succeed first.
            array: '0-95,100', a number of tasks or their indices: as many tasks, each with its GPULAYER_ARRAY_INDEX.
            placement: what it needs of its machine: see `explain`.

        Raises:
            SourceRefused: source or inputs can't travel. CommandRefused: the command can't be.
            RequestRefused: the control plane does not take it. ControlPlaneError: none answers.
        """
        known_keywords("submit", placement)
        command = Command(
            argv=argv,
            source=source,
            inputs=inputs,
            outputs=outputs,
            env=env or {},
            cwd=cwd,
            retries=retries,
            timeout_s=timeout_s,
            grace_s=grace_s,
            priority=priority,
            name=name,
            labels=labels or {},
            key=key,
            after=after,
            array=array,
            **placement,
        )
        return Job(self.submit_command(command)[0].id, self)

    def submit_command(
        self,
        command: Command,
        tell: Tell = _silent,
        asking: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> tuple[JobView, Bundle | None, Sent | None]:
        """Submit; the job, what travelled with it, and what of that was sent.

        `tell` takes lines for who waits; within `asking` is whatever may make a job.
        """
        command.spec("")  # says what is wrong before anything is read or sent
        bundle, sent = self._bundle(command), None
        submission = _submission(command, bundle)

        def ask() -> JobView:
            with asking():
                return self.ask(asks.submit(submission.key, submission.spec))

        try:
            return ask(), bundle, sent
        except RequestRefused as error:
            if error.problem.code != "bundle_unknown" or bundle is None:
                raise
        sent = self.sender.send(bundle, self.api.endpoint, tell)
        return ask(), bundle, sent

    def submit_batch(self, commands: Iterable[Command | Mapping[str, Any]]) -> list[Job]:
        """Submit many commands, by one request for every 10,000 of them, or 32 MB; of each all are taken, or none.

        Args:
            commands: `Command`s, or dicts of its fields. Each folder and set of inputs is looked through once.

        Raises:
            As `submit`.
        """
        every = [each if isinstance(each, Command) else Command(**each) for each in commands]
        bundles: dict[object, Bundle | None] = {}
        submissions: list[Submission] = []
        for command in every:
            what = (command.source_folder(), command.all_inputs())
            if what not in bundles:
                bundles[what] = self._bundle(command)
            submissions.append(_submission(command, bundles[what]))
        jobs: list[Job] = []
        for part in asks.in_batches(submissions):
            jobs += [Job(job, self) for job in self._batch(part, bundles.values())]
        return jobs

    def _batch(self, submissions: list[msgspec.Raw], bundles: Iterable[Bundle | None]) -> list[str]:
        try:
            return self.ask(asks.submit_batch(submissions)).jobs
        except RequestRefused as error:
            if error.problem.code != "bundle_unknown":
                raise
        for bundle in bundles:
            if bundle is not None:
                self.sender.send(bundle, self.api.endpoint, _silent)
        return self.ask(asks.submit_batch(submissions)).jobs

    def _bundle(self, command: Command) -> Bundle | None:
        source, inputs = command.source_folder(), command.all_inputs()
        return bundle_of(self.sender, source, inputs) if source is not None or inputs else None

    @spelled_out
    def explain(self, **placement: Unpack[Placing]) -> Explanation:
        """Where a job would run now, or machine by machine why it would not; nothing is submitted.

            client.explain(accelerator="cuda", devices=2, min_vram="40GB", frameworks=["torch>=2.4"])

        Args:
            placement: all of it may be left out. Of devices: `accelerator` ('cuda', 'rocm', 'mps'), `devices` (how
                many), `min_vram` and `vram_share` (bytes, or texts such as '40GB'), `device_names` (globs, any of
                which fits), `min_capability`, `min_driver`. Of the machine: `frameworks` ('torch>=2.4'), `python`,
                `ram`, `cpus`, `os`, `arch`, `worker_labels`, `worker` (its name). Of several: `nodes` (how many, all
                at once), `group_locality` ('prefer', 'require', 'spread', 'none'). Besides: `bind_cpus` (to the cores
                next to its devices), `wait_for_worker` (wait where no machine could run it).

        Raises:
            CommandRefused: it can't be asked for. RequestRefused, ControlPlaneError: as `submit`.
        """
        ask = asked(placement)
        return settled(lambda: self.ask(ask))

    # ---------------------------------------------------------------- look

    def job(self, job_id: str) -> Job:
        """A job by its id, which is not looked up yet."""
        return Job(job_id, self)

    def jobs(
        self,
        limit: int = 50,
        *,
        state: State | str = "",
        label: str = "",
        name: str = "",
        owner: str = "",
        before: str = "",
    ) -> list[JobView]:
        """The last jobs, newest first: at most 1,000.

        Args:
            limit: how many.
            state: in this state only.
            label: with this label only: 'k=v', or 'k' for any value.
            name: of this name only.
            owner: of this owner only.
            before: older than the job of this id.
        """
        wanted = state.value if isinstance(state, State) else state
        return self.ask(asks.jobs(limit, state=wanted, label=label, name=name, owner=owner, before=before))

    def workers(self) -> list[WorkerView]:
        """Every machine that is known."""
        return self.ask(asks.workers())

    def status(self, job_id: str) -> JobView:
        """A job as it is now."""
        return self.ask(asks.job(job_id))

    def wait_for(self, job_id: str, timeout: float | None = None) -> JobView:
        """A job once it has ended, or as it is `timeout` seconds later."""
        return self._carry(ended(job_id, timeout, time.monotonic))

    def wait(self, jobs: Iterable[Job | str], timeout: float | None = None) -> dict[str, State]:
        """The states of many jobs once all have ended, or `timeout` seconds later."""
        ids = [each.id if isinstance(each, Job) else each for each in jobs]
        return self._carry(all_ended(ids, timeout, time.monotonic))

    def logs(self, job_id: str, *, stream: str | None = None, index: int | None = None) -> str:
        """What a job wrote so far, as text."""
        return self.log_bytes(job_id, stream=stream, index=index).decode(errors="replace")

    def log_bytes(
        self, job_id: str, *, stream: str | None = None, index: int | None = None, tail_bytes: int | None = None
    ) -> bytes:
        """What a job wrote so far; of that the last `tail_bytes`."""
        return self.ask(asks.logs(job_id, index=index, stream=stream or "", tail_bytes=tail_bytes))

    def cancel(self, job_id: str) -> JobView:
        """A wish to cancel a job."""
        return self.ask(asks.cancel(job_id))

    def outputs(self, job_id: str) -> list[Output]:
        """The files that a job left."""
        return self.ask(asks.outputs(job_id))

    def stream(self, job: Job | str, index: int | None = None) -> Iterator[tuple[str, bytes]]:
        """What a job writes, from its first byte to its end, as it comes: ('stdout' or 'stderr', bytes).

        Args:
            job: the job or its id.
            index: of an array's task; None for the first one.

        Raises:
            RequestRefused: there is no such job. ControlPlaneError: no control plane answers, and none can be started.
        """
        from gpulayer.client.following import Following

        with Following(self.connection, job.id if isinstance(job, Job) else job, index=index) as following:
            for news in following:
                if isinstance(news, tuple):
                    yield news

    def download(self, job: Job | str, to: str | Path | None = None, *, tell: Tell = _silent) -> Came:
        """Fetch the files that a job left: those of an array's tasks into a folder JOB/INDEX each.

        A file that is here already with other content stays as it is: the job's lies beside it, as NAME.from-JOB.

        Args:
            job: the job or its id.
            to: the folder; by default the current one.
            tell: takes lines for who waits.

        Returns:
            What came, by paths below the folder: `written`, `here_already`, `beside`, `refused`.
        """
        from gpulayer.client.files import Home

        view = self.status(job.id if isinstance(job, Job) else job)
        return self.download_to(view, Home(root=Path(to or ".").expanduser().absolute()), tell)

    def download_to(self, job: JobView, home: Any, tell: Tell = _silent) -> Came:
        """Fetch a job's files into a folder that is known as it was: see `gpulayer.client.files.Home`."""
        from gpulayer.client.files import Files

        return Files().fetch_outputs(job, self.outputs(job.id), home, Tie(self._find), tell)

    # ---------------------------------------------------------------- what it stands on

    def ask(self, ask: Ask[T]) -> T:
        """One request. Raises `RequestRefused`, `ControlPlaneError`."""
        return self.api.ask(ask)

    def _carry(self, steps: Step[T]) -> T:
        answer: Any = None
        try:
            while True:
                answer = self.api.ask(steps.send(answer), patience_s=float("inf"))
        except StopIteration as end:
            return end.value

    @property
    def sender(self) -> Sender:
        """Looks through folders and sends them."""
        if self._sender is None:
            self._sender = Sender(self._data)
        return self._sender

    @property
    def connection(self) -> Connection:
        """For what comes by itself."""
        if self._connection is None:
            self._connection = Connection(self._find)
        return self._connection

    def close(self) -> None:
        """Leave the control plane; jobs go on."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self.api.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _submission(command: Command, bundle: Bundle | None) -> Submission:
    empty = bundle is None or not bundle.manifest.files
    spec: JobSpec = command.spec("" if bundle is None or empty else bundle.manifest.digest)
    return Submission(key=command.key or secrets.token_hex(12), spec=spec)
