"""Jobs on many machines at once: placed in one step, taken back together, ended together."""

from __future__ import annotations

from typing import Any

import pytest

from gpulayer.protocol.messages import Assign, CancelAttempt, Finished, HeldAttempt
from gpulayer.protocol.types import CommandSpec, JobSpec, Outcome, Requirements, State
from gpulayer_server.core.views import job_view, stored_view, task_view


class Gang:
    """A world with machines of one slot, and a job on many of them."""

    def __init__(self, world: Any, *, busy: bool = False):
        """`busy`: another job has one of the machines."""
        self.world = world
        for n in range(3):
            world.join(f"m{n}", slots=1)
        self.other = world.submit().id if busy else ""
        spec = JobSpec(command=CommandSpec(argv=("train",)), requirements=Requirements(nodes=3))
        self.id = world.ask(spec).id
        self.job = world.plane.jobs[self.id]

    @property
    def states(self) -> str:
        """Those of its tasks, by index."""
        return " ".join(task.state.value for task in self.job.tasks)

    def attempt(self, index: int) -> Any:
        """The current attempt of a task."""
        return self.job.tasks[index].attempt

    def conn(self, index: int) -> int:
        """The connection of the machine that has a task."""
        return self.world.plane.workers[self.attempt(index).worker].conn

    def start(self, *indices: int) -> None:
        """These programs run."""
        for index in indices:
            self.world.start(self.conn(index), self.attempt(index).id)

    def finish(self, index: int, outcome: Outcome, *, began: bool = False) -> Any:
        """An end, with the release."""
        message = Finished(attempt=self.attempt(index).id, end_offset=0, outcome=outcome, began=began, released=True)
        return self.world.say(self.conn(index), message)

    def give_back(self, index: int) -> Any:
        """It never began."""
        return self.world.give_back(self.conn(index), self.attempt(index).id)

    def cancelled(self) -> set[str]:
        """The attempts that the last event cancelled."""
        return {message.attempt for message in self.world.sent(CancelAttempt)}


@pytest.fixture
def gang(world: Any) -> Gang:
    """A job on three machines, all of which have it."""
    made = Gang(world)
    assert made.states == "assigned assigned assigned"
    return made


NEVER = Outcome(state=State.CANCELLED)  # what a worker says of what it had not begun
FAILED = Outcome(state=State.FAILED, exit_code=3)


def test_all_are_placed_in_one_step_on_machines_of_their_own(world: Any) -> None:
    gang = Gang(world, busy=True)
    assert gang.states == "queued queued queued"
    attempt = world.attempt(gang.other)
    conn = world.plane.workers[attempt.worker].conn
    world.start(conn, attempt.id)
    world.finish(conn, attempt.id)
    assert world.sent(Assign) == []
    world.release(conn, attempt.id)
    assert [message.index for message in world.sent(Assign)] == [0, 1, 2]
    assert len({task.attempt.worker for task in gang.job.tasks}) == 3
    names = [message.nodes for message in world.sent(Assign)]
    assert names == [tuple(world.plane.workers[task.attempt.worker].name for task in gang.job.tasks)] * 3


def test_its_view_counts_its_tasks(gang: Gang) -> None:
    view = job_view(gang.world.plane, gang.job)
    assert (view.state, view.tasks) == (State.ASSIGNED, {"assigned": 3})
    gang.start(1)
    assert job_view(gang.world.plane, gang.job).tasks == {"assigned": 2, "running": 1}
    assert stored_view(gang.job, {}, 1).state is State.RUNNING
    assert stored_view(gang.job, {}, 1).tasks == {}


def test_it_has_succeeded_when_all_have(gang: Gang) -> None:
    gang.start(0, 1, 2)
    for index in range(3):
        assert gang.job.state is None
        gang.finish(index, Outcome(state=State.SUCCEEDED, exit_code=0))
        assert gang.cancelled() == set()
    assert gang.job.state is State.SUCCEEDED


def test_one_that_fails_ends_the_others_and_it_is_stored_why(gang: Gang) -> None:
    gang.start(0, 1, 2)
    gang.finish(1, FAILED)
    assert gang.cancelled() == {gang.attempt(0).id, gang.attempt(2).id}
    machine = gang.world.plane.workers[gang.attempt(1).worker].name
    why = f"node 1 ({machine}) failed: exit code 3"
    for index in (0, 2):
        task = gang.job.tasks[index]
        assert (task.state, task.cancel_wanted, task.notes) == (State.RUNNING, True, (why,))
        assert task in gang.world.out.rows.values()
    for index in (0, 2):
        gang.finish(index, Outcome(state=State.CANCELLED, signal=15))
    assert gang.states == "cancelled failed cancelled"
    assert gang.job.state is State.FAILED
    assert task_view(gang.job.tasks[2], {}).outcome == Outcome(state=State.CANCELLED, signal=15, problem=why)
    assert stored_view(gang.job, {}).outcome == FAILED


def test_one_that_succeeds_lets_the_others_go_on(gang: Gang) -> None:
    gang.start(0, 1, 2)
    gang.finish(0, Outcome(state=State.SUCCEEDED))
    gang.finish(1, FAILED)
    assert gang.cancelled() == {gang.attempt(2).id}
    gang.finish(2, FAILED)
    assert (gang.states, gang.job.state) == ("succeeded failed failed", State.FAILED)


def test_one_that_is_lost_ends_the_others(gang: Gang) -> None:
    world = gang.world
    gang.start(0, 1, 2)
    name = gang.attempt(2).worker
    world.leave(gang.conn(2))
    world.wait(6)
    assert gang.states == "running running unreachable"
    world.join(world.plane.workers[name].name, slots=1, nonce="n2")  # its record there is gone
    assert gang.states == "running running failed"
    assert gang.cancelled() == {gang.attempt(0).id, gang.attempt(1).id}
    assert "no longer holds it" in gang.job.tasks[0].notes[0]


def test_one_that_is_out_of_reach_when_others_end_hears_of_it_when_it_is_back(gang: Gang) -> None:
    world = gang.world
    gang.start(0, 1, 2)
    name = world.plane.workers[gang.attempt(0).worker].name
    world.leave(gang.conn(0))
    world.wait(6)
    gang.finish(1, FAILED)
    assert gang.cancelled() == {gang.attempt(2).id}
    assert gang.job.tasks[0].cancel_wanted
    world.join(name, slots=1, attempts=(HeldAttempt(attempt=gang.attempt(0).id, started=True),))
    assert gang.cancelled() == {gang.attempt(0).id}


def test_a_person_cancels_all_of_it(gang: Gang) -> None:
    gang.start(0)
    view = gang.world.cancel(gang.id)
    assert view.cancelling
    assert [message.attempt for message in gang.world.sent(CancelAttempt)] == [gang.attempt(n).id for n in range(3)]
    for index in range(3):
        gang.finish(index, NEVER)
    assert (gang.states, gang.job.state) == ("cancelled cancelled cancelled", State.CANCELLED)
    assert {task.outcome.problem for task in gang.job.tasks} == {""}


def test_what_waits_is_cancelled_at_once(world: Any) -> None:
    gang = Gang(world, busy=True)
    world.cancel(gang.id)
    assert (gang.states, gang.job.state) == ("cancelled cancelled cancelled", State.CANCELLED)


def test_a_gang_that_is_given_up_fails_as_a_whole(gang: Gang) -> None:
    world = gang.world
    gang.start(0, 1, 2)
    world.leave(gang.conn(0))
    world.wait(6)
    world.cancel(gang.id, give_up=True)
    assert gang.states == "failed running running"
    assert gang.cancelled() == {gang.attempt(1).id, gang.attempt(2).id}
    for index in (1, 2):
        gang.finish(index, NEVER, began=True)
    assert gang.job.state is State.FAILED


def test_one_that_cannot_begin_takes_all_back(gang: Gang) -> None:
    world = gang.world
    before = [gang.attempt(index).id for index in range(3)]
    gang.give_back(1)
    assert gang.states == "assigned queued assigned"
    assert gang.cancelled() == {before[0], before[2]}
    assert len(world.plane.queue) == 0
    gang.finish(0, NEVER)
    assert gang.states == "queued queued assigned"
    world.give_back(gang.conn(2), before[2])
    assert gang.states == "assigned assigned assigned"
    assert [message.index for message in world.sent(Assign)] == [0, 1, 2]
    assert [task.attempts for task in gang.job.tasks] == [2, 2, 2]
    assert not {gang.attempt(index).id for index in range(3)} & {*before}


def test_one_that_cannot_begin_when_another_has_fails_and_ends_it(gang: Gang) -> None:
    gang.start(0)
    gang.give_back(1)
    assert gang.states == "running failed assigned"
    assert gang.cancelled() == {gang.attempt(0).id, gang.attempt(2).id}
    assert "node 0 had begun already" in gang.job.tasks[1].outcome.problem
    gang.finish(0, NEVER, began=True)
    gang.finish(2, NEVER)
    assert (gang.states, gang.job.state) == ("cancelled failed cancelled", State.FAILED)


@pytest.mark.parametrize("outcome", [NEVER, Outcome(state=State.SUCCEEDED), FAILED])
def test_one_that_ran_while_it_was_taken_back_fails_the_whole(gang: Gang, outcome: Outcome) -> None:
    gang.give_back(1)
    gang.finish(0, outcome, began=True)
    assert gang.states == f"{outcome.state.value} failed assigned"
    assert gang.cancelled() == {gang.attempt(2).id}
    assert "node 0" in gang.job.tasks[1].outcome.problem
    gang.finish(2, NEVER)
    assert gang.job.tasks[2].state is State.CANCELLED
    assert gang.job.state is State.FAILED


def test_a_person_cancels_what_is_being_taken_back(gang: Gang) -> None:
    gang.give_back(1)
    gang.world.cancel(gang.id)
    assert gang.states == "assigned cancelled assigned"
    gang.finish(0, NEVER)
    gang.finish(2, NEVER)
    assert (gang.states, gang.job.state) == ("cancelled cancelled cancelled", State.CANCELLED)


def test_a_restart_in_the_middle_takes_the_rest_back(gang: Gang) -> None:
    world = gang.world
    gang.give_back(1)
    names = [world.plane.workers[gang.attempt(index).worker].name for index in range(3)]
    held = {index: gang.attempt(index).id for index in (0, 2)}
    world.reborn()
    gang.job = world.plane.jobs[gang.id]
    assert gang.states == "assigned queued assigned"
    assert len(world.plane.queue) == 0
    conns = {}
    for index, attempt in held.items():
        conns[index] = world.join(names[index], slots=1, attempts=(HeldAttempt(attempt=attempt),))
        assert gang.cancelled() == {attempt}
    world.join(names[1], slots=1)
    for index, conn in conns.items():
        assert gang.job.tasks[index].state is State.ASSIGNED
        world.say(conn, Finished(attempt=held[index], end_offset=0, outcome=NEVER, released=True))
    assert gang.states == "assigned assigned assigned"
    assert [task.attempts for task in gang.job.tasks] == [2, 2, 2]


def test_a_restart_after_one_failed_ends_the_others_all_the_same(gang: Gang) -> None:
    world = gang.world
    gang.start(0, 1, 2)
    names = [world.plane.workers[gang.attempt(index).worker].name for index in range(3)]
    gang.finish(1, FAILED)
    world.reborn()
    gang.job = world.plane.jobs[gang.id]
    attempt = gang.attempt(0).id
    conn = world.join(names[0], slots=1, attempts=(HeldAttempt(attempt=attempt, started=True),))
    assert gang.cancelled() == {attempt}
    world.say(conn, Finished(attempt=attempt, end_offset=0, outcome=NEVER, began=True, released=True))
    assert gang.job.tasks[0].outcome.problem.startswith("node 1 (")


def test_a_worker_that_comes_back_without_it_takes_the_gang_back(gang: Gang) -> None:
    world = gang.world
    name = world.plane.workers[gang.attempt(0).worker].name
    world.leave(gang.conn(0))
    world.join(name, slots=1, nonce="n2")  # nothing of it came there
    assert gang.states == "queued assigned assigned"
    assert gang.cancelled() == {gang.attempt(1).id, gang.attempt(2).id}
    gang.finish(1, NEVER)
    gang.finish(2, NEVER)
    assert gang.states == "assigned assigned assigned"


def test_a_gang_that_no_fleet_could_take_is_rejected_as_a_whole(world: Any) -> None:
    for n in range(3):
        world.join(f"m{n}")
    spec = JobSpec(command=CommandSpec(argv=("t",)), requirements=Requirements(nodes=2, accelerator="cuda"))
    view = world.ask(spec)
    assert (view.state, view.tasks) == (State.REJECTED, {"rejected": 2})
    assert {reason.worker for reason in view.reasons} >= {"m0", "m1", "m2"}


def test_a_gang_after_a_job_that_fails_is_rejected_as_a_whole(world: Any) -> None:
    world.join()
    first = world.submit().id
    spec = JobSpec(command=CommandSpec(argv=("t",)), requirements=Requirements(nodes=2), after=(first,))
    job = world.plane.jobs[world.ask(spec).id]
    assert [task.state for task in job.tasks] == [State.QUEUED] * 2
    world.cancel(first)
    attempt = world.attempt(first)
    world.finish(1, attempt.id, State.CANCELLED)
    assert [task.state for task in job.tasks] == [State.REJECTED] * 2
    assert job.state is State.REJECTED
