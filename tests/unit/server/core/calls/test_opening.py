"""Maps that are opened: in which pool, with which calls, and what is refused."""

from __future__ import annotations

from gpulayer.protocol.calls import CallsAccepted
from gpulayer.protocol.messages import Assign
from gpulayer.protocol.types import Problem, State
from gpulayer_server.core.events import ArgsRow
from gpulayer_server.core.state import MapState
from tests.unit.server.core.calls.conftest import CallsWorld, calls_spec


def test_the_first_call_makes_a_job_with_one_lease(world: CallsWorld) -> None:
    world.join(slots=1)
    view = world.open(1, single=True)
    assert view.id.endswith(".1")
    assert (view.state, view.total, view.taken) == (State.QUEUED, 1, 1)
    [assign] = world.sent(Assign)
    assert assign.leased
    assert assign.spec.calls.function.name == "f"
    kinds = {type(row) for row in world.out.rows.values()}
    assert {MapState, ArgsRow} <= kinds
    assert world.view(view.job).kind == "calls"


def test_a_warm_call_is_given_out_in_the_same_unit(world: CallsWorld) -> None:
    conn, attempt, first = world.warm(1, single=True)
    assert world.given() == {attempt: [(first, 0, 1)]}
    world.did(conn, attempt, first, 0)
    assert world.map(first).state is State.SUCCEEDED
    assert len(world.sent(CallsAccepted)) == 1
    view = world.open(1, single=True)
    assert view.job == first.split(".")[0]
    assert view.id.endswith(".2")
    assert world.given() == {attempt: [(view.id, 0, 1)]}
    assert world.sent(Assign) == []
    assert {type(row) for row in world.out.rows.values()} == {MapState, ArgsRow}
    assert (view.state, view.running, view.runners) == (State.RUNNING, 1, 1)


def test_the_same_key_gives_the_same_map_also_after_its_end(world: CallsWorld) -> None:
    conn, attempt, name = world.warm(1, key="k")
    assert world.opened(1, key="k") == name
    world.did(conn, attempt, name, 0)
    again = world.open(1, key="k")
    assert (again.id, again.state) == (name, State.SUCCEEDED)
    other = world.open(1, key="k", name="g")
    assert isinstance(other, Problem)
    assert (other.status, other.code) == (409, "key_conflict")
    world.wait(12)
    assert world.opened(1, key="k") != name  # the store is asked first, by then


def test_other_functions_and_other_owners_have_pools_of_their_own(world: CallsWorld) -> None:
    jobs = {world.opened(1).split(".")[0], world.opened(1, name="g").split(".")[0]}
    jobs.add(world.opened(1, owner="bob").split(".")[0])
    assert len(jobs) == 3


def test_calls_come_in_parts_and_are_passed_over_when_they_come_again(world: CallsWorld) -> None:
    world.join()
    name = world.opened(2, last=False)
    assert world.bring(name, 2, 3).taken == 5
    view = world.bring(name, 1, 5)
    assert view.taken == 6
    [row] = [row for row in world.out.rows.values() if isinstance(row, ArgsRow)]
    assert (row.first, len(row.args)) == (5, 1)
    assert world.bring(name, 0, 6, last=True).total == 6
    assert [row for row in world.out.rows.values() if isinstance(row, ArgsRow)] == []


def test_calls_that_are_missing_and_calls_too_many_are_refused(world: CallsWorld) -> None:
    world.join()
    name = world.opened(2, last=False)
    gap = world.bring(name, 4, 1)
    assert isinstance(gap, Problem)
    assert "calls 2 to 3" in gap.title
    world.bring(name, 2, 0, last=True)
    over = world.bring(name, 2, 1)
    assert isinstance(over, Problem)
    assert over.code == "too_many_args"
    unknown = world.bring("nope.1", 0, 1)
    assert isinstance(unknown, Problem)
    assert unknown.status == 404


def test_a_map_without_calls_has_succeeded_at_once(world: CallsWorld) -> None:
    world.join(slots=1)
    view = world.open(0)
    assert (view.state, view.total) == (State.SUCCEEDED, 0)
    assert world.sent(Assign) == []
    assert world.plane.idle()


def test_a_map_with_a_total_needs_no_last_word(world: CallsWorld) -> None:
    conn, attempt, name = world.warm(2, total=2, last=False)
    world.did(conn, attempt, name, 0, 2)
    assert world.map(name).state is State.SUCCEEDED


def test_what_can_not_be_is_refused_in_one_line(world: CallsWorld) -> None:
    bad = world.open(3, total=2)
    assert isinstance(bad, Problem)
    assert bad.title == "a map of 2 calls can't have the arguments of 3"
    assert isinstance(world.open(1, spec=calls_spec(stateful=True)), Problem)
    assert isinstance(world.open(1, retries=-1), Problem)
    assert world.plane.jobs == {}


def test_a_map_waits_for_its_first_calls_with_a_runner(world: CallsWorld) -> None:
    conn = world.join(slots=1)
    name = world.opened(0, last=False)
    attempt = world.lease(name.split(".")[0])
    world.start(conn, attempt)
    assert world.given() == {}
    world.bring(name, 0, 1, last=True)
    assert world.given() == {attempt: [(name, 0, 1)]}


def test_calls_of_a_map_that_was_cancelled_do_not_stay_open(world: CallsWorld) -> None:
    conn, attempt, name = world.warm(10)
    world.did(conn, attempt, name, 0, 4)
    count = world.pool(name).count()
    assert (count.calls, count.done, count.dropped) == (10, 4, 0)
    world.cancel_map(name)
    count = world.pool(name).count()
    assert (count.calls, count.done, count.dropped, count.running) == (10, 4, 6, 0)
