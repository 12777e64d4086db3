"""What a world is made of and what befalls it, drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from gpulayer.protocol.types import JobSpec
from tests.simulation.clients import spec
from tests.simulation.network import Weather


@dataclass(kw_only=True)
class Jobs:
    """How jobs are drawn: one of each."""

    count: int = 0
    seconds: tuple[float, ...] = (0.1, 1.0, 5.0, 20.0, 60.0)
    sessions: tuple[str | None, ...] = (None, None, "a", "b")
    retries: tuple[int, ...] = (0, 0, 1, 2)
    devices: tuple[int, ...] = (0, 0, 0, 1, 2)
    idle_timeout_s: tuple[float, ...] = (1800.0, 1800.0, 10.0)

    def draw(self, rng: Random) -> JobSpec:
        """One job."""
        return spec(
            rng.choice(self.seconds),
            dies=rng.random() < 0.08,
            session=rng.choice(self.sessions),
            retries=rng.choice(self.retries),
            devices=rng.choice(self.devices),
            worker=f"w{rng.randrange(4)}" if rng.random() < 0.1 else None,
            idle_timeout_s=rng.choice(self.idle_timeout_s),
        )


@dataclass(kw_only=True)
class Plan:
    """How a world is made. `faults`: the mean seconds between two of a kind; the other numbers are probabilities."""

    workers: tuple[tuple[int, int], ...] = ((2, 0),)  # slots and devices of each
    owners: int = 1
    weather: Weather = field(default_factory=Weather)
    chaos_s: float = 100.0
    jobs: Jobs = field(default_factory=Jobs)
    faults: dict[str, float] = field(default_factory=dict)
    commit_s: float = 0.01  # the longest time of a commit
    failing_commits: float = 0.0
    crashing_releases: float = 0.0  # the control plane dies between a commit and what follows from it
    crashing_effects: float = 0.0  # an agent dies between two of the effects of one event
    damaged_records: float = 0.0  # a new agent can't read an attempt's record
    repeated_words: float = 0.0  # a worker says again something that it said before
    slow_starts: float = 0.0  # of preparations that take many seconds
    given_back: float = 0.0  # of attempts that can't be started where they are assigned
    large_output: float = 0.0  # of what programs write, the part that is larger than a frame
    unlucky_kernels: float = 0.0  # a kernel dies just while its agent connects
    skewed: bool = False
    long_sleep: bool = False


def draw_plan(rng: Random) -> Plan:
    """A plan: some kinds of trouble are left out, the others come seldom or often."""
    profile = rng.choice((_mixed, _mixed, _mixed, _leases, _sessions))
    plan = profile(rng)
    plan.weather = Weather(
        delay_s=rng.choice((0.002, 0.02, 0.3)),
        byte_s=rng.choice((0.0, 0.0, 2e-6)),
        lost=rng.choice((0.0, 0.0, 0.003)),
        doubled=rng.choice((0.0, 0.01, 0.1)),
        overtaken=rng.choice((0.0, 0.0, 0.01)),
    )
    plan.owners = rng.randint(1, 2)
    plan.commit_s = rng.choice((0.002, 0.02, 0.5))
    plan.failing_commits = rng.choice((0.0, 0.0, 0.03))
    plan.crashing_releases = rng.choice((0.0, 0.0, 0.02))
    plan.crashing_effects = rng.choice((0.0, 0.0, 0.003))
    plan.damaged_records = rng.choice((0.0, 0.0, 0.1))
    plan.repeated_words = rng.choice((0.0, 0.0, 0.2))
    plan.slow_starts = rng.choice((0.02, 0.02, 0.3))
    plan.given_back = rng.choice((0.0, 0.02, 0.2))
    plan.large_output = rng.choice((0.005, 0.02, 0.2))
    plan.unlucky_kernels = rng.choice((0.0, 0.0, 0.3))
    plan.skewed = rng.random() < 0.5
    return plan


def _workers(rng: Random, least: int) -> tuple[tuple[int, int], ...]:
    return tuple((rng.randint(1, 4), rng.choice((0, 0, 1, 2))) for _ in range(rng.randint(least, 4)))


def _mixed(rng: Random) -> Plan:
    kinds = {
        "cp_crash": 25.0,
        "cp_sleep": 60.0,
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
    return Plan(
        workers=_workers(rng, 1),
        chaos_s=rng.uniform(40, 140),
        jobs=Jobs(count=rng.randint(4, 30)),
        faults={kind: mean * rng.choice((0.4, 1.0, 2.5)) for kind, mean in kinds.items() if rng.random() < 0.55},
        long_sleep=rng.random() < 0.03,
    )


def _leases(rng: Random) -> Plan:
    """Long programs with retries, long partings: who runs what, and since when?"""
    kinds = {
        "cp_crash": 60.0,
        "cp_sleep": 80.0,
        "agent_crash": 15.0,
        "machine_sleep": 80.0,
        "long_part": 35.0,
        "dark": 50.0,
        "give_up": 30.0,
        "cancel": 60.0,
    }
    return Plan(
        workers=_workers(rng, 2),
        chaos_s=rng.uniform(120, 300),
        jobs=Jobs(
            count=rng.randint(2, 8),
            seconds=(20.0, 80.0, 200.0),
            sessions=(None, None, None, "a"),
            retries=(0, 1, 1, 2),
            devices=(0, 0, 1),
        ),
        faults={kind: mean * rng.choice((0.5, 1.0)) for kind, mean in kinds.items() if rng.random() < 0.6},
    )


def _sessions(rng: Random) -> Plan:
    """Many cells in few sessions, whose kernels die and which are let go of."""
    kinds = {
        "cp_crash": 30.0,
        "agent_crash": 12.0,
        "kernel_death": 10.0,
        "break": 10.0,
        "dark": 15.0,
        "part": 20.0,
        "cancel": 10.0,
        "release": 15.0,
        "give_up": 5.0,
    }
    return Plan(
        workers=_workers(rng, 1)[:2],
        chaos_s=rng.uniform(40, 120),
        jobs=Jobs(
            count=rng.randint(10, 30),
            seconds=(0.1, 0.1, 1.0, 10.0),
            sessions=("a", "a", "a", "b"),
            retries=(0, 0, 0, 1),
            devices=(0,),
        ),
        faults={kind: mean * rng.choice((0.5, 1.0, 3.0)) for kind, mean in kinds.items() if rng.random() < 0.55},
    )
