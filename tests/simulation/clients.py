"""Clients: they submit, submit again with the same key, cancel, give up, and let sessions go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from gpulayer.protocol.types import CellSpec, CommandSpec, JobSpec, JobView, Problem, Requirements, State
from gpulayer_server.core.events import CancelWanted, Event, ReleaseWanted
from gpulayer_server.http.client_socket import submit
from tests.simulation.controlplane import ControlPlane, Reply
from tests.simulation.simulator import Host, Process, Violation
from tests.simulation.truth import Truth

_PATIENCE_S = 8.0  # without an answer for so long it asks again, on another connection


@dataclass(kw_only=True)
class Wanted:
    """A job that a client wants, under its key."""

    key: str
    spec: JobSpec
    job: str | None = None  # its name, once the control plane answered
    tries: int = 0


class Client(Process):
    """One person's client."""

    def __init__(self, host: Host, control_plane: ControlPlane, truth: Truth, owner: str):
        super().__init__(host)
        self.control_plane = control_plane
        self.truth = truth
        self.owner = owner
        self.wanted: dict[str, Wanted] = {}

    # ---------------------------------------------------------------- submitting

    def submit(self, key: str, spec: JobSpec) -> None:
        """Want a job, and ask until it is there."""
        self.wanted[key] = Wanted(key=key, spec=spec)
        self.ask(key)

    def names(self) -> list[str]:
        """The jobs that it knows of."""
        return [wanted.job for wanted in self.wanted.values() if wanted.job is not None]

    def ask(self, key: str) -> None:
        """Ask once more, with the same key."""
        wanted = self.wanted[key]
        wanted.tries += 1
        self._request(self._at_control_plane, wanted)
        self.after(_PATIENCE_S, self._impatient, wanted, wanted.tries)

    def ask_with_another_job(self, key: str) -> None:
        """Use a key of this client for another job, once it surely made one: that is refused."""
        if self.wanted[key].job is not None:
            self._request(self._submit_another, key)

    def _submit_another(self, key: str) -> None:
        def reply(result: JobView | Problem | None) -> None:
            if not isinstance(result, Problem) or result.code not in ("key_conflict", "store_failed"):
                raise Violation(f"key {key} was used for another job, and is answered by {result}")

        another = replace(self.wanted[key].spec, name="another")
        submit(self.control_plane, self.owner, key, another, reply)  # type: ignore[arg-type]

    def _impatient(self, wanted: Wanted, tries: int) -> None:
        if wanted.job is None and wanted.tries == tries:
            self.ask(wanted.key)

    def _request(self, call: Callable[..., None], *args: object) -> None:
        """Something arrives at the control plane, if there is one."""
        delay_s = 0.02 * self.sim.random.random()
        self.control_plane.after(delay_s, self.arrive, call, args)

    def arrive(self, call: Callable[..., None], args: tuple[object, ...]) -> None:
        """A request is at the control plane."""
        if self.control_plane.up:
            call(*args)

    def _at_control_plane(self, wanted: Wanted) -> None:
        """The code that answers submissions in the control plane, live jobs and those of the past."""

        def reply(result: JobView | Problem | None) -> None:
            self._noted(wanted, result)
            self.after(0.02 * self.sim.random.random(), self._answered, wanted, result)

        self.sim.log(self.owner, f"submits {wanted.key}")
        submit(self.control_plane, self.owner, wanted.key, wanted.spec, reply)  # type: ignore[arg-type]

    def _noted(self, wanted: Wanted, result: JobView | Problem | None) -> None:
        """What leaves the control plane is told, whether or not it arrives."""
        if isinstance(result, JobView):
            self.truth.answered(self.owner, wanted.key, result)
        elif not isinstance(result, Problem) or result.code != "store_failed":
            raise Violation(f"the submission of {wanted.key} is answered by {result}")

    def _answered(self, wanted: Wanted, result: JobView | Problem) -> None:
        if isinstance(result, JobView):
            wanted.job = result.id
        else:
            self.after(1.0, self._impatient, wanted, wanted.tries)

    # ---------------------------------------------------------------- other wishes

    def cancel(self, key: str, *, give_up: bool = False) -> None:
        """Wish the end of a job, if its name is known."""
        job = self.wanted[key].job
        if job is not None:
            if give_up:
                self.truth.given_up.add(job)
            self.sim.log(self.owner, f"cancels {job}", "and gives it up" if give_up else "")
            self._request(self._ask_plane, lambda n: CancelWanted(request=n, job=job, give_up=give_up), self._cancelled)

    def _cancelled(self, result: JobView | Problem | None) -> None:
        if isinstance(result, JobView) and not (result.terminal or result.cancelling):
            raise Violation(f"a cancel was answered by {result}")

    def release(self, session: str) -> None:
        """Let a session go."""
        self.truth.released.add((self.owner, session))
        self._request(
            self._ask_plane, lambda n: ReleaseWanted(request=n, owner=self.owner, name=session), lambda result: None
        )

    def _ask_plane(self, make: Callable[[int], Event], reply: Reply) -> None:
        self.control_plane.request(make, reply)

    # ---------------------------------------------------------------- looking

    def unreachable(self) -> list[str]:
        """The keys of jobs that are told to be out of reach."""
        views = self.truth.views
        lost = {view.id for view in views.values() if view.state is State.UNREACHABLE}
        return [key for key, each in self.wanted.items() if each.job in lost]


def spec(
    seconds: float,
    *,
    dies: bool = False,
    session: str | None = None,
    retries: int = 0,
    devices: int = 0,
    worker: str | None = None,
    idle_timeout_s: float = 1800.0,
    command: bool = False,
    quiet: bool = False,
    array: tuple[tuple[int, int], ...] = (),
    after: tuple[str, ...] = (),
    priority: int = 0,
    **asks: Any,
) -> JobSpec:
    """A job that runs for about so many seconds. `quiet`: a command that writes nothing; `asks`: more of machines."""
    share = asks.get("vram_share_bytes")
    requirements = Requirements(
        accelerator="cuda" if devices or share else None, devices=0 if share else devices, worker=worker, **asks
    )
    words = (f"{seconds}", *(["die"] if dies else []), *(["quiet"] if quiet else []))
    code = " ".join(words)
    if command:
        return JobSpec(
            command=CommandSpec(argv=words),
            requirements=requirements,
            retries=retries,
            array=array,
            after=after,
            priority=priority,
        )
    return JobSpec(
        cell=CellSpec(code=code, session=session, idle_timeout_s=idle_timeout_s),
        requirements=requirements,
        retries=retries,
        priority=priority,
    )
