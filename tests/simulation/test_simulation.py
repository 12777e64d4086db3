"""The simulator in `make test`: seed after seed for a box of seconds, and scenarios of their own."""

from __future__ import annotations

import os

import pytest

from gpulayer.protocol.types import JobView, State
from tests.simulation.__main__ import run_seeds
from tests.simulation.chaos import run_seed
from tests.simulation.clients import spec
from tests.simulation.plans import Plan
from tests.simulation.world import World

SECONDS = float(os.environ.get("GPULAYER_SIMULATION_SECONDS", "30"))
FIRST_SEED = int(os.environ.get("GPULAYER_SIMULATION_SEED", "0"))
HOURS = 3600.0


@pytest.mark.timeout(SECONDS + 120)
def test_seed_after_seed_holds_every_invariant(capsys: pytest.CaptureFixture[str]) -> None:
    tally = run_seeds(FIRST_SEED, 1, SECONDS)
    rate = tally.events / tally.cpu_s
    with capsys.disabled():
        print(f"\nsimulation: {tally.seeds} seeds from {FIRST_SEED}, {tally.events} events, {rate:.0f} events/s")
    assert not tally.failing, f"replay it with: python -m tests.simulation --seed {tally.failing[0]} --trace"
    assert tally.seeds > 0


def test_a_seed_replays_to_the_letter() -> None:
    traces: list[list[str]] = [[], []]
    for trace in traces:
        run_seed(7, trace.append)
    assert traces[0] == traces[1]
    assert len(traces[0]) > 100


def ended_by_itself(view: JobView) -> bool:
    """Whether a job ended by its own program, well or with that program's own error, and by nothing around it."""
    return view.terminal and view.outcome is not None and view.outcome.problem == ""


def quiet_world(seed: int = 1) -> World:
    """One worker with two slots, and no trouble but what a test makes."""
    world = World(seed, Plan(workers=((2, 0),)))
    world.start()
    world.run(5.0)
    return world


@pytest.mark.parametrize("retries", [0, 2])
def test_the_control_plane_asleep_for_eight_hours(retries: int) -> None:
    """The running attempt is still running after it, the same one, and ends as it would have."""
    world = quiet_world()
    try:
        client = world.clients[0]
        client.submit("key", spec(12 * HOURS, retries=retries))
        world.run(10.0)
        plane = world.control_plane
        (task,) = plane.plane.tasks.values()
        assert task.state is State.RUNNING
        assert task.attempt is not None
        attempt = task.attempt.id
        asleep_s = 8 * HOURS
        plane.host.sleep(asleep_s)
        world.run(asleep_s + 30.0)
        (task,) = plane.plane.tasks.values()
        if retries == 0:
            assert (task.state, task.attempt and task.attempt.id) == (State.RUNNING, attempt)
        else:  # with a lease its worker had to end it; another attempt runs, and nothing failed
            assert task.state in (State.RUNNING, State.ASSIGNED)
            assert task.attempts == 2
        world.run(12 * HOURS)
        world.settle()
        assert all(ended_by_itself(view) for view in world.truth.views.values())
    finally:
        world.close()


def test_the_worker_asleep_for_eight_hours_keeps_a_job_without_a_lease() -> None:
    world = quiet_world()
    try:
        world.clients[0].submit("key", spec(60.0))
        world.run(10.0)
        (task,) = world.control_plane.plane.tasks.values()
        assert task.attempt is not None
        attempt = task.attempt.id
        world.machines[0].sleep(8 * HOURS)
        world.run(4 * HOURS)
        (task,) = world.control_plane.plane.tasks.values()
        assert (task.state, task.attempt and task.attempt.id) == (State.UNREACHABLE, attempt)
        world.run(4 * HOURS + 300.0)
        world.settle()
        assert all(ended_by_itself(view) for view in world.truth.views.values())
        assert [view.attempts for view in world.truth.views.values()] == [1]
    finally:
        world.close()


def test_an_attempts_name_is_never_given_twice_after_lost_commits() -> None:
    """The fence: whatever commits fail and wherever the control plane dies, a name belongs to one task."""
    world = quiet_world()
    try:
        owner_of: dict[str, str] = {}
        for number in range(8):
            world.control_plane.failing_commits = 0.5
            world.clients[0].submit(f"key{number}", spec(1.0))
            for _ in range(10):
                world.run(0.1)
                for name, attempt in world.control_plane.plane.attempts.items():
                    assert owner_of.setdefault(name, attempt.task) == attempt.task
            world.crash_control_plane(0.5)
            world.run(3.0)
        assert len(owner_of) >= 3
        world.settle()
        assert len(world.truth.views) == 8
        assert all(ended_by_itself(view) for view in world.truth.views.values())
    finally:
        world.close()
