"""What befalls a world, by its plan: each kind of trouble at random times."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.simulation.agent import Agent
from tests.simulation.callers import Caller, draw_faults, draw_leaving, draw_maps
from tests.simulation.clients import Client
from tests.simulation.machine import Machine
from tests.simulation.plans import Plan, draw_plan
from tests.simulation.simulator import Process
from tests.simulation.world import World


class Chaos:
    """Owns the trouble of one world, until it ends."""

    def __init__(self, world: World):
        self.world = world
        self.random = world.random
        self.kinds: dict[str, Callable[[], None]] = {
            "cp_crash": self._cp_crash,
            "cp_sleep": self._cp_sleep,
            "cp_end": self._cp_end,
            "stranger": self._stranger,
            "agent_crash": self._agent_crash,
            "machine_sleep": self._machine_sleep,
            "machine_death": self._machine_death,
            "kernel_death": self._kernel_death,
            "break": self._break,
            "dark": self._dark,
            "part": self._part,
            "long_part": self._long_part,
            "cut": self._cut,
            "cancel": self._cancel,
            "again": self._again,
            "release": self._release,
            "give_up": self._give_up,
            "sick": self._sick,
            "stranger_process": self._stranger_process,
            "cancel_map": self._cancel_map,
            "call_again": self._call_again,
            "let_runners_go": self._let_runners_go,
            "cancel_runners": self._cancel_runners,
        }
        self._clock = Process(world.outside.host)

    def start(self) -> None:
        """Plan the first of each kind, and all jobs."""
        plan = self.world.plan
        for kind, mean_s in plan.faults.items():
            self._plan(kind, mean_s)
        for n in range(plan.jobs.count):
            self._clock.after(plan.chaos_s * self.random.random() ** 2, self._submit, n)
        for n in range(plan.maps.count):
            self._clock.after(plan.chaos_s * self.random.random() ** 2, self._call, n)
        self._clock.after(1.0, self._heal_crashes)

    def stop(self) -> None:
        """No more."""
        self._clock.end_life()

    def _plan(self, kind: str, mean_s: float) -> None:
        self._clock.after(self.random.expovariate(1 / mean_s), self._strike, kind, mean_s)

    def _strike(self, kind: str, mean_s: float) -> None:
        self._plan(kind, mean_s)
        self.kinds[kind]()

    def _heal_crashes(self) -> None:
        """A control plane that died in the middle of something is started again."""
        self._clock.after(1.0, self._heal_crashes)
        if not self.world.control_plane.up and self.random.random() < 0.3:
            self.world.start_control_plane()

    # ---------------------------------------------------------------- machines and processes

    def _agent(self) -> Agent:
        return self.random.choice(self.world.agents)

    def _cp_crash(self) -> None:
        down_s = 90.0 * self.random.random() if self.random.random() < 0.1 else 3.0 * self.random.random()
        self.world.crash_control_plane(down_s, silent=self.random.random() < 0.2)

    def _cp_end(self) -> None:
        self.world.end_control_plane(3.0 * self.random.random())

    def _stranger(self) -> None:
        worker_id = self.random.choice(("id-stranger", "id-w0"))
        self.world.stranger.knock(worker_id, newer=self.random.random() < 0.5)

    def _cp_sleep(self) -> None:
        host = self.world.control_plane.host
        if not host.asleep:
            host.sleep(self._sleep_s())

    def _sleep_s(self) -> float:
        if self.world.plan.long_sleep and self.random.random() < 0.2:
            return 8 * 3600.0
        return self.random.choice((5.0, 15.0, 60.0, 90.0)) * self.random.uniform(0.5, 2)

    def _agent_crash(self) -> None:
        agent = self._agent()
        self.world.crash_agent(agent, 3.0 * self.random.random(), silent=self.random.random() < 0.3)
        if self.random.random() < 0.2:  # and a kernel while nobody looks
            self._kill_kernel(agent.machine)

    def _machine_sleep(self) -> None:
        machine = self._agent().machine
        if not machine.asleep:
            machine.sleep(self._sleep_s())

    def _machine_death(self) -> None:
        agent = self._agent()
        alive = [each for each in self.world.agents if not each.machine.dead]
        if len(alive) > 1 and agent in alive:
            self.world.kill_machine(agent)

    def _kernel_death(self) -> None:
        self._kill_kernel(self._agent().machine)

    def _kill_kernel(self, machine: Machine) -> None:
        if machine.kernels and not machine.asleep:
            self.random.choice(machine.kernels).die()

    def _sick(self) -> None:
        """A device falls sick, or is mended."""
        agent = self._agent()
        if agent.machine.devices and not agent.machine.dead:
            agent.machine.sick ^= {self.random.choice(agent.machine.devices).uuid}
            agent.machine_changed()

    def _stranger_process(self) -> None:
        """Somebody else's process comes to a device, or leaves it."""
        machine = self._agent().machine
        if machine.devices:
            machine.foreign ^= {self.random.choice(machine.devices).uuid}

    # ---------------------------------------------------------------- the network

    def _break(self) -> None:
        agent = self._agent()
        if agent.up and agent.end is not None:
            self.world.network.break_off(agent.end, silent=False)

    def _dark(self) -> None:
        agent = self._agent()
        if agent.up and agent.end is not None:
            if self.random.random() < 0.5:
                self.world.network.break_off(agent.end, silent=True)
            else:  # one direction only
                side = self.random.choice((agent.end, agent.end.peer))
                side.dark = True

    def _part(self) -> None:
        seconds = self.random.choice((1.0, 5.0, 15.0, 60.0, 100.0)) * self.random.uniform(0.5, 1.5)
        self.world.network.part(self._agent().name, seconds)

    def _long_part(self) -> None:
        """One at a time: the others may be given what the parted one had."""
        network = self.world.network
        if all(network.reachable(agent.name) for agent in self.world.agents):
            network.part(self._agent().name, self.random.uniform(50.0, 120.0))

    def _cut(self) -> None:
        """What is under way is lost, and nobody can connect again for a while."""
        agent = self.random.choice([each for each in self.world.agents if each.machine.kernels] or self.world.agents)
        if agent.up and agent.end is not None:
            self.world.network.break_off(agent.end, silent=True)
            self.world.network.part(agent.name, self.random.uniform(20.0, 40.0))

    # ---------------------------------------------------------------- people

    def _client(self) -> Client:
        return self.random.choice(self.world.clients)

    def _key(self, client: Client) -> str | None:
        return self.random.choice(list(client.wanted)) if client.wanted else None

    def _submit(self, n: int) -> None:
        client = self._client()
        client.submit(f"key{n}", self.world.plan.jobs.draw(self.random, client.names()))

    def _cancel(self) -> None:
        client = self._client()
        key = self._key(client)
        if key is not None:
            client.cancel(key)

    def _again(self) -> None:
        client = self._client()
        key = self._key(client)
        if key is not None:
            for _ in range(self.random.randint(1, 3)):
                client.ask(key)
            if self.random.random() < 0.3:
                client.ask_with_another_job(key)

    def _release(self) -> None:
        self._client().release(self.random.choice("ab"))

    def _give_up(self) -> None:
        client = self._client()
        for key in client.unreachable():
            if self.random.random() < 0.5:
                client.cancel(key, give_up=True)

    # ---------------------------------------------------------------- those who call functions

    def _caller(self) -> Caller:
        return self.random.choice(self.world.callers)

    def _call(self, n: int) -> None:
        key = f"map{n}"
        job, of, args = self.world.plan.maps.draw(self.random, key)
        leaving = draw_leaving(Random(f"leaving {self.world.sim.seed} {n}"), len(args))  # changes nothing of the rest
        self._caller().call(key, job, of, args, **leaving)

    def _cancel_map(self) -> None:
        caller = self._caller()
        if caller.wishes:
            caller.cancel(self.random.choice(list(caller.wishes)))

    def _call_again(self) -> None:
        caller = self._caller()
        if caller.wishes:
            caller.ask(self.random.choice(list(caller.wishes)))

    def _let_runners_go(self) -> None:
        caller = self._caller()
        for job in caller.jobs()[-1:]:
            caller.let_go(job)

    def _cancel_runners(self) -> None:
        caller = self._caller()
        for job in caller.jobs()[-1:]:
            caller.cancel_job(job, give_up=self.random.random() < 0.3)


def plan_of(seed: int) -> Plan:
    """The plan of a seed. What is drawn of calls changes nothing of the rest."""
    plan, rng = draw_plan(Random(f"plan {seed}")), Random(f"maps 481 {seed}")
    plan.maps = draw_maps(rng)
    if plan.maps.count:
        plan.faults |= draw_faults(rng)
    return plan


def run_seed(seed: int, trace: Callable[[str], None] | None = None) -> int:
    """Run the world of a seed to its end; returns the number of events. Raises whatever went wrong."""
    world = World(seed, plan_of(seed), trace)
    try:
        chaos = Chaos(world)
        world.start()
        chaos.start()
        world.run(world.plan.chaos_s)
        chaos.stop()
        world.settle()
        return world.sim.events
    finally:
        world.close()
