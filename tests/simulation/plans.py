"""What a world is made of and what befalls it, drawn from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from gpulayer.protocol.types import JobSpec
from tests.simulation.callers import Maps
from tests.simulation.clients import spec
from tests.simulation.network import Weather

GB = 10**9


@dataclass(kw_only=True)
class Jobs:
    """How jobs are drawn: one of each."""

    count: int = 0
    seconds: tuple[float, ...] = (0.1, 1.0, 5.0, 20.0, 60.0)
    sessions: tuple[str | None, ...] = (None, None, "a", "b")
    retries: tuple[int, ...] = (0, 0, 1, 2)
    devices: tuple[int, ...] = (0, 0, 0, 1, 2)
    idle_timeout_s: tuple[float, ...] = (1800.0, 1800.0, 10.0)
    commands: float = 0.0  # of all jobs, those that are commands
    gangs: float = 0.0  # of commands, those on many machines at once
    declaring: float = 0.0  # of jobs without a session, those that declare a part of a device, memory or cores
    wide: int = 0  # arrays of so many tasks at most; 0 for small ones, now and then

    def draw(self, rng: Random, known: Sequence[str]) -> JobSpec:
        """One job. `known`: jobs after which it may be to run."""
        if self.commands and rng.random() < self.commands:
            if self.gangs and rng.random() < self.gangs:
                return self._gang(rng, known)
            return self._command(rng, known)
        session = rng.choice(self.sessions)
        return spec(
            rng.choice(self.seconds),
            dies=rng.random() < 0.08,
            session=session,
            retries=rng.choice(self.retries),
            devices=rng.choice(self.devices),
            worker=f"w{rng.randrange(4)}" if rng.random() < 0.1 else None,
            idle_timeout_s=rng.choice(self.idle_timeout_s),
            **(self._declared(rng) if session is None else {}),
        )

    def _declared(self, rng: Random) -> dict[str, Any]:
        """What a job takes of a machine beside its slot and whole devices."""
        if not self.declaring or rng.random() >= self.declaring:
            return {}
        share = rng.choice((None, 8 * GB, 8 * GB, 16 * GB)) if max(self.devices) else None
        ram, cores = rng.choice((None, 10 * GB, 30 * GB)), rng.choice((None, 0.5, 1.5, 3.0))
        return {"vram_share_bytes": share, "ram_bytes": ram, "cpu_cores": cores}

    def _gang(self, rng: Random, known: Sequence[str]) -> JobSpec:
        return spec(
            rng.choice(self.seconds),
            dies=rng.random() < 0.15,
            devices=rng.choice(self.devices),
            command=True,
            quiet=rng.random() < 0.5,
            after=tuple(rng.sample(known, 1)) if known and rng.random() < 0.1 else (),
            priority=rng.choice((0, 0, 0, 5)),
            nodes=rng.choice((2, 2, 3)),
            locality=rng.choice(("prefer", "spread", "none")),
            **self._declared(rng),
        )

    def _command(self, rng: Random, known: Sequence[str]) -> JobSpec:
        if self.wide:
            array = ((0, rng.randint(1, self.wide) - 1),)
            return spec(
                rng.choice(self.seconds), retries=rng.choice(self.retries), command=True, quiet=True, array=array
            )
        first, gap = rng.randint(0, 3), rng.randint(2, 4)
        ranges = ((first, first + rng.randint(0, 3)), (first + 4 + gap, first + 4 + gap))
        return spec(
            rng.choice(self.seconds),
            dies=rng.random() < 0.08,
            retries=rng.choice(self.retries),
            devices=rng.choice(self.devices),
            command=True,
            quiet=rng.random() < 0.5,
            array=ranges[: rng.randint(1, 2)] if rng.random() < 0.4 else (),
            after=tuple(rng.sample(known, min(len(known), rng.randint(1, 2)))) if rng.random() < 0.4 else (),
            priority=rng.choice((0, 0, 0, 5)),
            **self._declared(rng),
        )


@dataclass(kw_only=True)
class Plan:
    """How a world is made. `faults`: the mean seconds between two of a kind; the other numbers are probabilities."""

    workers: tuple[tuple[int, int], ...] = ((2, 0),)  # slots and devices of each
    owners: int = 1
    weather: Weather = field(default_factory=Weather)
    chaos_s: float = 100.0
    jobs: Jobs = field(default_factory=Jobs)
    maps: Maps = field(default_factory=Maps)
    faults: dict[str, float] = field(default_factory=dict)
    commit_s: float = 0.01  # the longest time of a commit
    failing_commits: float = 0.0
    crashing_releases: float = 0.0  # the control plane dies between a commit and what follows from it
    crashing_effects: float = 0.0  # an agent dies between two of the effects of one event
    damaged_records: float = 0.0  # a new agent can't read an attempt's record
    repeated_words: float = 0.0  # a worker says again something that it said before
    forgotten_words: float = 0.0  # a worker does not say that a program began, or what it does before that
    forgotten_output: float = 0.0  # a worker does not send some of its output
    late_events: float = 0.0  # what happened to an attempt or a session is heard once more, when it is let go of
    doubled_answers: float = 0.0  # the control plane says something twice
    small_frames: float = 0.0  # a frame ends wherever the sender had the time, not with all that there is to say
    prepare_s: float = 0.5  # the longest preparation, but for the slow ones
    slow_starts: float = 0.0  # of preparations that take many seconds
    given_back: float = 0.0  # of attempts that can't be started where they are assigned
    failing_programs: float = 0.0  # of those that do not die, the ones that end with an error of their own
    large_output: float = 0.0  # of what programs write, the part that is larger than a frame
    samples: float = 0.0  # of the seconds, those after which a worker says how it fares
    unlucky_kernels: float = 0.0  # a kernel dies just while its agent connects
    skewed: bool = False
    long_sleep: bool = False
    local: bool = False  # the first worker is a local one: it starts after the control plane, and ends with it


def draw_plan(rng: Random) -> Plan:
    """A plan: some kinds of trouble are left out, the others come seldom or often."""
    plan = Plan(
        workers=tuple((rng.randint(1, 4), rng.choice((0, 0, 1, 2))) for _ in range(rng.randint(1, 4))),
        owners=rng.randint(1, 2),
        weather=Weather(
            delay_s=rng.choice((0.002, 0.02, 0.3)),
            byte_s=rng.choice((0.0, 0.0, 2e-6)),
            lost=rng.choice((0.0, 0.0, 0.003)),
            doubled=rng.choice((0.0, 0.01, 0.1)),
            overtaken=rng.choice((0.0, 0.0, 0.01)),
        ),
        commit_s=rng.choice((0.002, 0.02, 0.5)),
        failing_commits=rng.choice((0.0, 0.0, 0.03)),
        crashing_releases=rng.choice((0.0, 0.0, 0.02)),
        crashing_effects=rng.choice((0.0, 0.0, 0.003)),
        damaged_records=rng.choice((0.0, 0.0, 0.1)),
        repeated_words=rng.choice((0.0, 0.0, 0.2)),
        forgotten_words=rng.choice((0.0, 0.0, 0.1)),
        forgotten_output=rng.choice((0.0, 0.0, 0.02)),
        late_events=rng.choice((0.0, 0.2)),
        doubled_answers=rng.choice((0.0, 0.1)),
        small_frames=rng.choice((0.1, 1.0)),
        slow_starts=rng.choice((0.02, 0.02, 0.3)),
        given_back=rng.choice((0.0, 0.02, 0.2)),
        failing_programs=0.15,
        large_output=rng.choice((0.005, 0.02, 0.2)),
        unlucky_kernels=rng.choice((0.0, 0.0, 0.3)),
        skewed=rng.random() < 0.5,
        local=rng.random() < 0.3,
    )
    rng.choice((_mixed, _mixed, _mixed, _leases, _sessions, _starts, _output, _output))(rng, plan)
    if rng.random() < 0.4:
        plan.jobs.commands = rng.choice((0.5, 1.0))
    if rng.random() < 0.15:
        _small(rng, plan)
    elif rng.random() < 0.4:
        _fleet(rng, plan)
    return plan


def _some(rng: Random, kinds: dict[str, float]) -> dict[str, float]:
    return {kind: mean * rng.choice((0.4, 1.0, 2.5)) for kind, mean in kinds.items() if rng.random() < 0.55}


def _mixed(rng: Random, plan: Plan) -> None:
    kinds = {
        "cp_crash": 25.0,
        "cp_sleep": 60.0,
        "cp_end": 60.0,
        "stranger": 20.0,
        "agent_crash": 20.0,
        "machine_sleep": 60.0,
        "machine_death": 150.0,
        "kernel_death": 25.0,
        "break": 15.0,
        "dark": 25.0,
        "part": 30.0,
        "cancel": 10.0,
        "again": 10.0,
        "release": 20.0,
        "give_up": 15.0,
    }
    plan.faults = _some(rng, kinds)
    plan.chaos_s = rng.uniform(40, 140)
    plan.jobs = Jobs(count=rng.randint(4, 30))
    plan.long_sleep = rng.random() < 0.03


def _leases(rng: Random, plan: Plan) -> None:
    """Long programs with retries, long partings: who runs what, and since when?"""
    kinds = {"cp_crash": 60.0, "cp_sleep": 80.0, "agent_crash": 15.0, "machine_sleep": 80.0, "dark": 50.0}
    plan.faults = {"long_part": 25.0, **_some(rng, {**kinds, "give_up": 30.0, "cancel": 60.0})}
    plan.workers += ((rng.randint(2, 4), 1),)
    plan.chaos_s = rng.uniform(120, 300)
    plan.jobs = Jobs(
        count=rng.randint(2, 8),
        seconds=(20.0, 100.0, 200.0),
        sessions=(None, None, None, "a"),
        retries=(0, 1, 1, 2),
        devices=(0, 0, 1),
    )


def _sessions(rng: Random, plan: Plan) -> None:
    """Many cells in few sessions, whose kernels die and which are let go of."""
    kinds = {"cp_crash": 30.0, "agent_crash": 12.0, "kernel_death": 10.0, "break": 10.0, "dark": 15.0, "part": 20.0}
    plan.faults = _some(rng, {**kinds, "cancel": 10.0, "release": 15.0, "give_up": 5.0})
    plan.workers = plan.workers[:2]
    plan.chaos_s = rng.uniform(40, 120)
    plan.jobs = Jobs(
        count=rng.randint(10, 30),
        seconds=(0.1, 0.1, 1.0, 10.0),
        sessions=("a", "a", "a", "b"),
        retries=(0, 0, 0, 1),
        devices=(0,),
    )


def _starts(rng: Random, plan: Plan) -> None:
    """Attempts that are long in coming up, and then often can't, while agents die and connections break."""
    plan.faults = {"part": 8.0, **_some(rng, {"cp_crash": 30.0, "break": 6.0, "agent_crash": 6.0, "cancel": 4.0})}
    plan.chaos_s = rng.uniform(40, 100)
    plan.slow_starts, plan.given_back = 0.6, 0.3
    plan.crashing_effects = rng.choice((0.0, 0.03))
    plan.jobs = Jobs(count=rng.randint(5, 20), seconds=(0.1, 1.0, 5.0), sessions=(None, None, "a"), devices=(0,))


def _output(rng: Random, plan: Plan) -> None:
    """Much output over a slow net, from workers that die or are given up."""
    plan.faults = {"cut": 8.0, "give_up": 2.0, **_some(rng, {"agent_crash": 10.0, "machine_death": 15.0, "dark": 8.0})}
    plan.workers = ((4, 0), (3, 0))
    plan.chaos_s = rng.uniform(40, 100)
    plan.large_output, plan.weather.byte_s = 0.3, 2e-6
    plan.repeated_words = rng.choice((0.0, 0.5))
    plan.jobs = Jobs(count=rng.randint(10, 20), seconds=(5.0, 30.0, 60.0), sessions=(None, None, "a"), devices=(0,))


def _fleet(rng: Random, plan: Plan) -> None:
    """Machines that fall sick and are measured; jobs on many of them, and such as declare what they take."""
    plan.workers = tuple((rng.randint(1, 3), rng.choice((0, 1, 2, 2))) for _ in range(rng.randint(2, 4)))
    kinds = {"sick": 8.0, "stranger_process": 8.0, "agent_crash": 20.0, "break": 15.0, "cancel": 15.0}
    plan.faults |= _some(rng, kinds)
    plan.samples = rng.choice((0.0, 1.0))
    plan.jobs.commands = rng.choice((0.6, 1.0))
    plan.jobs.gangs = rng.choice((0.0, 0.5, 0.8))
    plan.jobs.declaring = rng.choice((0.0, 0.4, 0.8))
    plan.jobs.devices = (0, 0, 1, 1, 2)
    plan.jobs.count = rng.randint(5, 20)


def _small(rng: Random, plan: Plan) -> None:
    """Many commands that are over at once, so that workers take more than they have slots for; a few are slow."""
    kinds = {"cp_crash": 15.0, "agent_crash": 10.0, "break": 8.0, "dark": 15.0, "part": 15.0, "machine_sleep": 40.0}
    plan.faults = _some(rng, {**kinds, "cancel": 4.0, "machine_death": 40.0})
    plan.slow_starts = rng.choice((0.0, 0.02))
    plan.prepare_s = rng.choice((0.5, 0.01))
    plan.chaos_s = rng.uniform(20, 60)
    plan.jobs = Jobs(
        count=rng.randint(4, 10),
        seconds=(0.005, 0.01, 0.02, 0.02, 3.0),
        retries=(0, 0, 1),
        commands=rng.choice((0.8, 1.0)),
        wide=24,
    )
