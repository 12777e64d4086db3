"""What really happened, as nobody inside can know it; and what must hold at every moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gpulayer.protocol.messages import Assign
from gpulayer.protocol.types import TERMINAL, JobView, State
from gpulayer_server.core.events import Effects, Event, LocalWorkerExpected, WorkerConnected
from gpulayer_server.core.plane import Plane
from gpulayer_server.core.state import Attempt, Job, Task
from gpulayer_server.core.views import stored_view
from gpulayer_server.scheduling.match import unmet
from gpulayer_server.store.database import Store
from tests.simulation.callstruth import CallsTruth
from tests.simulation.comparing import differences, unfounded
from tests.simulation.deciding import wrong
from tests.simulation.machine import Machine, Program
from tests.simulation.simulator import Simulator, Violation

if TYPE_CHECKING:
    from tests.simulation.machine import Spool

_STEADY_AGENT_S = 8.0  # an agent that began so long ago has ended whatever its lease no longer covers
_STEADY_MACHINE_S = 3.0  # the same for a machine that slept
_FENCED_S = 20.0  # on a connection that looks open: it may take so long to find that it is not
_CANCEL_S = 28.0  # the same, then the grace
_MOST_ATTEMPTS = 30


def keys(job: Job) -> list[tuple[str, int | None]]:
    """By what names the truth knows a job: its own, and of one with many tasks each task's, with the index."""
    return [(job.id, None), *[(task.id, task.index) for task in job.tasks if job.many]]


class Truth:
    """Every program that ever ran, everything that a client was ever told. Raises `Violation`."""

    def __init__(self, sim: Simulator, store: Store):
        self.sim = sim
        self.store = store
        self.programs: dict[str, Program] = {}  # by attempt: each runs at most once
        self.of_task: dict[str, list[Program]] = {}  # by the key of the job, or of the task of one with many
        self.arrays: dict[str, int] = {}  # jobs with many tasks, and how many
        self.after: dict[str, tuple[str, ...]] = {}  # jobs that are to run after others
        self.doubled: list[str] = []  # those of which two programs were live when the second began
        self.spools: dict[str, Spool] = {}
        self.views: dict[str, JobView] = {}  # the last that was told of each job, and of each task of one with many
        self.job_of_key: dict[tuple[str, str], str] = {}
        self.cancelling: dict[str, float] = {}  # jobs that are told to be, since when
        self.given_up: set[str] = set()  # jobs that a client gave up
        self.damaged: set[str] = set()  # attempts whose record a new agent could not read
        self._fenced: dict[str, float] = {}  # attempts whose programs should end, since when
        self._assigned: set[str] = set()
        self.released: set[tuple[str, str]] = set()  # sessions that a client let go of
        self._local_until = 0.0  # by the control plane's clock: a local worker is being started
        self._told_since: dict[str, JobView] = {}  # since the last look into the store
        self.calls = CallsTruth(sim)

    # ---------------------------------------------------------------- programs

    def began(self, machine: Machine, program: Program) -> None:
        """A program starts to run."""
        attempt, spec = program.attempt, program.spec
        job = self.key_of(program)
        self.sim.log(machine.name, f"program of {attempt} runs")
        if attempt in self.programs:
            raise Violation(f"the program of {attempt} starts a second time")
        self._check_after(attempt)
        others = self.of_task.setdefault(job, [])
        if len(others) > spec.retries:
            raise Violation(f"job {job}, retries={spec.retries}, runs for the {len(others) + 1}th time: {attempt}")
        told = self.views.get(job)
        if told is not None and told.state in (State.CANCELLED, State.REJECTED, State.SUCCEEDED):
            raise Violation(f"the program of {attempt} starts after its job was told to be {told.state.value}")
        if len(program.kernel.devices) != spec.requirements.device_count and program.kernel.session is None:
            raise Violation(f"{attempt} has {len(program.kernel.devices)} devices, it asked for {spec.requirements}")
        if len(program.kernel.devices) < spec.requirements.device_count:
            raise Violation(f"{attempt} has {len(program.kernel.devices)} devices, it asked for {spec.requirements}")
        self.programs[attempt] = program
        self.spools[attempt] = program.spool
        others.append(program)
        if any(other.live for other in others[:-1]):
            self.doubled.append(job)
            self._check_doubled(job)

    def replaced(self, program: Program) -> None:
        """A runner of the same attempt, after one that died."""
        self.programs[program.attempt] = program
        self.of_task[self.key_of(program)][-1] = program

    def key_of(self, program: Program) -> str:
        """The key of a program's job, or of its task, if that is one of many."""
        job = program.attempt.split("-")[0]
        return f"{job}/{program.index}" if job in self.arrays else job

    def _check_after(self, attempt: str) -> None:
        """What is to run after others runs after they succeeded, and that is committed."""
        job = attempt.split("-")[0]
        states = self.store.states(self.after.get(job, ()))
        for name in self.after.get(job, ()):
            if states.get(name) is not State.SUCCEEDED:
                raise Violation(f"{attempt} runs, and {name}, after which it is to run, is {states.get(name)}")

    def _check_doubled(self, job: str) -> None:
        """Two live programs of one job: only where the older one's agent could not end it in time."""
        for older in self.of_task[job][:-1]:
            machine = older.kernel.machine
            steady = self.sim.now - machine.agent_up_since > _STEADY_AGENT_S
            awake = not machine.asleep and self.sim.now - machine.awake_since > _STEADY_MACHINE_S
            if older.live and steady and awake:
                raise Violation(f"{older.attempt} and {self.of_task[job][-1].attempt} run at the same time")

    def sweep(self) -> None:
        """What takes time to show."""
        for job in self.doubled:
            self._check_doubled(job)
        for job, since in self.cancelling.items():
            self._check_cancelling(job, since)
        for programs in self.of_task.values():
            for program in programs:
                if program.live:
                    self._check_fenced(program)

    def _check_fenced(self, program: Program) -> None:
        """A program whose attempt is given up is ended when its worker is back."""
        view = self.views.get(self.key_of(program))
        if view is None or (view.attempt == program.attempt and not view.terminal):
            return
        machine = program.kernel.machine
        fenced_at = self._fenced.setdefault(program.attempt, self.sim.now)
        since = max(fenced_at, machine.welcomed_since, machine.awake_since)
        if not machine.asleep and self.sim.now - since > _FENCED_S:
            raise Violation(f"{program.attempt} runs on, its job is told to be {view.state.value} with {view.attempt}")

    def _check_cancelling(self, job: str, since: float) -> None:
        """A wish to cancel is carried out once the worker can be told."""
        for program in self.of_task.get(job, []):
            machine = program.kernel.machine
            told_since = max(since, program.began_at, machine.welcomed_since, machine.awake_since)
            if program.live and not machine.asleep and self.sim.now - told_since > _CANCEL_S:
                raise Violation(f"{program.attempt} runs on, its job was cancelled at {since:.1f}")

    def known_to_run(self, attempt: str) -> bool:
        """Whether the control plane has heard that an attempt's program began."""
        program = self.programs.get(attempt)
        view = self.views.get(self.key_of(program)) if program is not None else None
        return view is not None and view.attempt == attempt and view.started_at is not None

    def check_room(self, machine: Machine) -> None:
        """Slots and devices are given to one kernel at a time."""
        if len(machine.kernels) > machine.slots:
            owners = [kernel.owner for kernel in machine.kernels]
            raise Violation(f"{machine.name} has {machine.slots} slots and {len(owners)} kernels: {owners}")
        whole: list[str] = []
        shares: Counter[str] = Counter()
        for kernel in machine.kernels:
            share = kernel.asked.vram_share_bytes
            for device in kernel.devices:
                if share is None:
                    whole.append(device.uuid)
                else:
                    shares[device.uuid] += share
        if len({*whole, *shares}) < len(whole) + len(shares):
            raise Violation(f"{machine.name}: a device is held twice: {whole}, in parts {shares}")
        for device in machine.devices:
            if shares[device.uuid] > (device.vram_bytes or 0):
                raise Violation(f"{machine.name}: {shares} are declared on {device}")
        ram = sum(kernel.asked.ram_bytes or 0 for kernel in machine.kernels)
        cores = sum(kernel.asked.cpu_cores or 0.0 for kernel in machine.kernels)
        if ram > machine.ram_bytes or cores > machine.cpu_cores + 1e-6:
            raise Violation(f"{machine.name}: {ram} bytes of memory and {cores} cores are declared by jobs there")

    def check_trim(self, attempt: str, offset: int, length: int) -> None:
        """A worker lets go only of what the control plane holds."""
        if offset > length:
            raise Violation(f"{attempt}: {offset} bytes are let go of, the control plane holds {length}")

    # ---------------------------------------------------------------- what clients are told

    def told(self, key: str, view: JobView) -> None:
        """Somebody was told how a job stands, or a task of it."""
        before = self.views.get(key)
        if view.tasks:  # as a whole: one task is shown, and after a while another one
            self._told_as_a_whole(before, view)
            self.views[key] = self._told_since[key] = view
            return
        if before is not None and before.terminal and _lasting(before) != _lasting(view):
            raise Violation(f"job {view.id} was told to be {before}, and now {view}")
        if view.attempts > _MOST_ATTEMPTS:
            raise Violation(f"job {view.id} is assigned again and again: {view}")
        problem = view.outcome.problem if view.outcome else ""
        if (
            view.state is State.FAILED
            and problem.startswith("its lease ended")
            and view.attempts <= 1
            and view.kind != "calls"
        ):
            raise Violation(f"job {view.id} failed with its first lease: {view}")
        if before is not None and before.attempts > view.attempts:
            raise Violation(f"job {view.id} had {before.attempts} attempts, and now {view.attempts}")
        self.sim.log("cp", f"tells: {view.id} {view.state.value} {view.attempt or ''}")
        if view.cancelling:
            self.cancelling.setdefault(key, self.sim.now)
        else:
            self.cancelling.pop(key, None)
        self.views[key] = self._told_since[key] = view

    def _told_as_a_whole(self, before: JobView | None, view: JobView) -> None:
        if view.kind != "calls" and sum(view.tasks.values()) != self.arrays[view.id]:
            raise Violation(f"job {view.id} has {self.arrays[view.id]} tasks, and is told to have {view.tasks}")
        if before is not None and before.terminal and _lasting(before) != _lasting(view):
            raise Violation(f"job {view.id} was told to be {before}, and now {view}")
        if view.terminal != {*view.tasks}.issubset({state.value for state in TERMINAL}):
            raise Violation(f"job {view.id} is told to be {view.state.value}, with {view.tasks}")

    def answered(self, owner: str, key: str, view: JobView) -> None:
        """A submission was answered."""
        job = self.job_of_key.setdefault((owner, key), view.id)
        if job != view.id:
            raise Violation(f"key {key} made job {job}, and then {view.id}")

    def compare_with_store(self, views: Iterable[tuple[str, JobView]], store: Store) -> None:
        """Everything decided is committed: the store has what was told just now."""
        for key, view in views:
            _, stored = _stored(store, key, view)
            if _lasting(stored) != _lasting(view):
                raise Violation(f"told: {view}, stored: {stored}")

    def rebuilt(self, plane: Plane, store: Store) -> None:
        """A plane was made from the store: what was told before still holds."""
        for key, view in self._told_since.items():
            task, stored = _stored(store, key, view)
            if view.terminal and _lasting(stored) != _lasting(view):
                raise Violation(f"told: {view}, stored: {stored}")
            if view.tasks:
                continue
            if stored.attempts < view.attempts or (view.cancelling and not task.cancel_wanted):
                raise Violation(f"told: {view}, stored: {stored}")
        self._told_since.clear()
        self.calls.rebuilt(store)
        self.check_plane(plane)

    # ---------------------------------------------------------------- the plane itself

    def check_decisions(self, plane: Plane, event: Event, effects: Effects, clock: float, *, anew_at: float) -> None:
        """What one event changed. `anew_at`: when the control plane began, or woke from a long sleep."""
        for job in effects.jobs.values():  # a name is given again after a commit that failed
            self.after[job.id] = job.spec.after
            self.arrays.pop(job.id, None)
            if job.many:
                self.arrays[job.id] = len(job.tasks)
        self.calls.decided(plane, effects)
        self._check_local(event, effects, clock)
        problem = wrong(plane, event, effects, clock, local_until=self._local_until)
        if problem:
            raise Violation(problem)
        told = {message.attempt: message for _, message in effects.sends if isinstance(message, Assign)}
        for row in effects.rows.values():
            if isinstance(row, Attempt) and row.id not in self._assigned:
                self._assigned.add(row.id)
                if row.id not in told:
                    raise Violation(f"{row.id} is assigned to nobody")
                if (told[row.id].index, told[row.id].spec.array) != (row.index, ()):
                    raise Violation(f"{row.id}, of task {row.task}, is assigned as {told[row.id]}")
        self._check_gangs(effects, told)
        lost_after_s = plane.settings.lost_after_s * (1 - 2e-3)
        if self.sim.now - anew_at < lost_after_s:
            for job, task in _rejected(effects):
                self._check_rejected(plane, job, task)

    def _check_gangs(self, effects: Effects, told: dict[str, Assign]) -> None:
        """In one event all of a gang is assigned, each to a machine of its own, or none."""
        placed: dict[str, list[Attempt]] = {}
        for row in effects.rows.values():
            if isinstance(row, Attempt) and row.id in told and effects.jobs[told[row.id].job].spec.gang:
                placed.setdefault(told[row.id].job, []).append(row)
        for name, attempts in placed.items():
            nodes = effects.jobs[name].spec.requirements.nodes
            if sorted(each.index for each in attempts) != list(range(nodes)):
                raise Violation(f"{name} is for {nodes} machines, and is placed in part: {attempts}")
            if len({each.worker for each in attempts}) < nodes:
                raise Violation(f"{name} is for {nodes} machines, and two of it are on one: {attempts}")
            if {len(told[each.id].nodes) for each in attempts} != {nodes}:
                raise Violation(f"{name} is for {nodes} machines, and its workers are told of others")

    def _check_local(self, event: Event, effects: Effects, clock: float) -> None:
        """While a local worker is being started nothing is rejected, since nobody knows yet what it offers."""
        if isinstance(event, LocalWorkerExpected):
            self._local_until = event.until
        if isinstance(event, WorkerConnected) and event.hello.local and any(effects.rows):
            self._local_until = 0.0
        for job, task in _rejected(effects):
            if not task.reasons:
                raise Violation(f"{task.id} is rejected for no reason")
            if task.reasons[0].code == "after" and not job.spec.after:
                raise Violation(f"{task.id} is rejected for a job that it is not to run after")
            if task.reasons[0].code not in ("session", "after") and clock < self._local_until:
                raise Violation(f"{task.id} is rejected, while a local worker is being started")

    def _check_rejected(self, plane: Plane, job: Job, task: Task) -> None:
        """Nobody is given up before he could be heard."""
        if task.reasons[0].code in ("session", "after"):
            return
        able = [worker.name for worker in plane.workers.values() if not unmet(job.spec.requirements, worker)]
        if len(able) >= job.spec.requirements.nodes:
            raise Violation(f"{task.id} is rejected, and {able} could take it")
        if job.spec.wait_for_worker:
            raise Violation(f"{task.id} is rejected, and was to wait for a worker")

    def check_plane(self, plane: Plane) -> None:
        """What must hold inside a plane."""
        problem = unfounded(plane)
        if problem:
            raise Violation(problem)

    def check_store(self, plane: Plane, store: Store) -> None:
        """A plane made from the store is the plane that lives; everything must be committed."""
        again = Plane(epoch=plane.epoch, now=plane.last_tick, snapshot=store.load(), settings=plane.settings)
        found = differences(plane, again)
        if found:
            raise Violation(f"the store differs from the plane: {found}")


def _rejected(effects: Effects) -> list[tuple[Job, Task]]:
    """The tasks that an event rejected."""
    rows = effects.rows.values()
    return [(effects.jobs[row.job], row) for row in rows if isinstance(row, Task) and row.state is State.REJECTED]


def _stored(store: Store, key: str, view: JobView) -> tuple[Task, JobView]:
    """What the store has of a job, or of one task of it."""
    job = store.job(view.id)
    index = int(key.rpartition("/")[2]) if "/" in key else None
    task = job.task(index) if job is not None else None
    if job is None or task is None:
        raise Violation(f"{key} was told of, and is not in the store")
    return task, stored_view(job, {}, index)


def _lasting(view: JobView) -> JobView:
    """A view without what is not stored: how far a start has come, the worker's name of today, the count of calls."""
    return replace(view, progress="", worker=None, calls=None)
