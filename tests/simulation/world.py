"""A world: one control plane, some workers, some clients, and what befalls them; all of it drawn from a seed."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from gpulayer.protocol.types import Device
from gpulayer_server.core.state import Settings
from gpulayer_server.store.database import Store
from tests.simulation.agent import Agent
from tests.simulation.callers import Caller, attended
from tests.simulation.callstruth import AWAY_S
from tests.simulation.clients import Client
from tests.simulation.comparingcalls import check_results
from tests.simulation.controlplane import ControlPlane
from tests.simulation.ending import check_end, nowhere, unfinished
from tests.simulation.machine import Machine
from tests.simulation.network import Network
from tests.simulation.plans import GB, Plan
from tests.simulation.simulator import Host, Process, Simulator, Violation
from tests.simulation.strangers import Stranger
from tests.simulation.truth import Truth

_UNIX_S = 1_700_000_000.0
_MEMORY = Path("/dev/shm")  # streams are files: in memory they are fastest
_LONGEST_END_S = 3000.0
_MUCH_S = 1500.0  # in so long all is done, unless there are hours of calls


class World:
    """Owns everything of one run. Close it, also after a failure."""

    def __init__(self, seed: int, plan: Plan, trace: Callable[[str], None] | None = None):
        logging.getLogger("gpulayer.server").setLevel(logging.CRITICAL)
        self.plan = plan
        self.sim = Simulator(seed, trace)
        self.random = self.sim.random
        store = Store(None)
        self.truth = Truth(self.sim, store)
        self.network = Network(self.sim, plan.weather)
        self._folder = tempfile.mkdtemp(prefix="gl-sim-", dir=_MEMORY if _MEMORY.is_dir() else None)
        home = Host(self.sim, "cp", clock_s=_UNIX_S, rate=self._rate())
        streams, settings = Path(self._folder) / "streams", Settings(client_away_s=AWAY_S)
        self.control_plane = ControlPlane(home, self.network, self.truth, streams, store, settings=settings)
        self.control_plane.commit_s = plan.commit_s
        self.control_plane.doubled_answers = plan.doubled_answers
        self.control_plane.careless_workers = plan.repeated_words > 0 or plan.forgotten_output > 0
        self.control_plane.expects_local = plan.local
        self.control_plane.failing_commits = plan.failing_commits
        self.control_plane.crashing_releases = plan.crashing_releases
        self.machines = [self._machine(f"w{n}", *shape) for n, shape in enumerate(plan.workers)]
        for machine in self.machines:
            machine.large_output, machine.failing_programs = plan.large_output, plan.failing_programs
        self.machines[0].local = plan.local
        self.agents = [Agent(machine, self.network, self.control_plane, plan) for machine in self.machines]
        for agent in self.agents:
            agent.crash_and_return = partial(self.crash_agent, agent, 1.0)
        outside = Host(self.sim, "outside", clock_s=0.0, rate=1.0)
        self.clients = [Client(outside, self.control_plane, self.truth, f"owner{n}") for n in range(plan.owners)]
        self.callers = [Caller(outside, self.control_plane, self.truth, client.owner) for client in self.clients]
        self.control_plane.attended = partial(attended, self.callers)
        if not self.control_plane.careless_workers:
            self.truth.calls.length = lambda attempt: self.control_plane.streams.length(attempt)
        self.outside = Process(outside)
        self.stranger = Stranger(outside, self.network, self.control_plane)

    def _rate(self) -> float:
        return self.random.uniform(1 - 1e-3, 1 + 1e-3) if self.plan.skewed else 1.0

    def _machine(self, name: str, slots: int, devices: int) -> Machine:
        return Machine(
            self.sim,
            name,
            truth=self.truth,
            slots=slots,
            devices=tuple(
                Device(uuid=f"{name}-gpu{n}", kind="cuda", index=n, vram_bytes=24 * GB) for n in range(devices)
            ),
            clock_s=self.random.uniform(100, 1e6),
            rate=self._rate(),
        )

    # ---------------------------------------------------------------- running

    def start(self) -> None:
        """Everything is switched on."""
        self.control_plane.start()
        for agent in self.agents:
            if agent.machine.local:  # it is there a while after the control plane
                self.outside.after(10.0 * self.random.random(), self.start_agent, agent)
            else:
                agent.start()
        self.outside.after(2.0, self._look_around)

    def _look_around(self) -> None:
        """Invariants that would cost too much after every event."""
        self.outside.after(2.0, self._look_around)
        self.truth.sweep()
        for agent in self.agents:
            if agent.up:
                check_results(agent.link)
        plane = self.control_plane
        if not plane.up:
            return
        self.truth.check_plane(plane.plane)
        if not plane.outbox and not plane.failing:
            self.truth.check_store(plane.plane, plane.store)

    def run(self, seconds: float) -> None:
        """Let so much true time pass."""
        self.sim.run(seconds)

    # ---------------------------------------------------------------- trouble of one kind

    def crash_control_plane(self, down_s: float, *, silent: bool = False) -> None:
        """It dies, and starts again after a while."""
        if self.control_plane.host.asleep:
            return
        self.control_plane.crash(silent=silent)
        self.outside.after(down_s, self.start_control_plane)

    def end_control_plane(self, down_s: float) -> None:
        """It ends in order, with its local workers, and is started again after a while."""
        self.control_plane.end()
        self.outside.after(1.0, self.crash_control_plane, down_s)

    def start_control_plane(self) -> None:
        """Start it, unless it is up."""
        if not self.control_plane.up and not self.control_plane.host.asleep:
            self.control_plane.start()

    def crash_agent(self, agent: Agent, down_s: float, *, silent: bool = False) -> None:
        """It dies, and its keeper starts another. `silent`: the control plane is not told."""
        if agent.up and not agent.machine.asleep:
            if silent and agent.end is not None:
                self.network.break_off(agent.end, silent=True)
            agent.crash()
            self.outside.after(down_s, self.start_agent, agent)

    def start_agent(self, agent: Agent) -> None:
        """Start an agent, unless it is up or its machine can't."""
        machine = agent.machine
        if machine.dead or agent.up:
            return
        if machine.asleep:
            self.outside.after(1.0, self.start_agent, agent)
            return
        agent.start()

    def kill_machine(self, agent: Agent) -> None:
        """It dies for good; nobody is told."""
        if agent.end is not None:
            self.network.break_off(agent.end, silent=True)
        agent.up = False
        agent.end_life()
        agent.machine.die()

    def leave_half_open(self, agent: Agent) -> None:
        """Its socket ends on its side only; the control plane is not told."""
        end = agent.end
        if end is not None:
            end.dark = True
            self.network.close(end)
            end.closed()

    # ---------------------------------------------------------------- the end

    def settle(self) -> None:
        """All trouble ends; then everything has to come to its end too, and to be right."""
        plane = self.control_plane
        self.network.heal()
        plane.failing_commits = plane.crashing_releases = 0.0
        self.plan.crashing_effects = self.plan.unlucky_kernels = self.plan.forgotten_output = 0.0
        for host in (plane.host, *self.machines):
            host.wake()
        for agent in self.agents:
            agent.machine.calm_down()
            agent.machine_changed()
        self.sim.log("world", "settles")
        self._settled_at = self.sim.now
        self.run(3.0)
        self.start_control_plane()
        for agent in self.agents:
            self.start_agent(agent)
        waited_s = 0.0
        while waited_s < _LONGEST_END_S:
            self._urge(first=waited_s == 0.0)
            before = nowhere(self)
            self.run(20.0)
            waited_s += 20.0
            if before & nowhere(self):
                raise Violation(f"runners do not have what they were given: {before & nowhere(self)}")
            if not unfinished(self):
                break
        else:
            raise Violation(f"after {_LONGEST_END_S:.0f} quiet seconds: {unfinished(self)}")
        self.run(5.0)
        self._look_around()
        check_end(self)

    def _urge(self, *, first: bool) -> None:
        """Clients let their sessions go, and give some of the jobs up whose machine is dead."""
        for client in self.clients:
            for session in list(self.control_plane.plane.sessions.values()):
                if session.owner == client.owner and not session.closing:
                    client.release(session.name)
            for key in client.unreachable():
                if not first and self.random.random() < 0.1:
                    client.cancel(key, give_up=True)
        for caller in self.callers:
            caller.urge(patient=self.sim.now < self._settled_at + _MUCH_S)

    def close(self) -> None:
        """Remove the files."""
        self.control_plane.crash()
        self.control_plane.store.close()
        shutil.rmtree(self._folder)
