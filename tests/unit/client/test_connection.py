"""The client's connection over the control plane's restarts."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from gpulayer.client.connection import Connection, Subscription
from gpulayer.client.errors import ControlPlaneError
from gpulayer.client.wire import WireClosed
from gpulayer.protocol.messages import COMM_BYTES, CancelJob, Chunk, Follow, Refused, Submit, ToKernel, Unfollow, Update
from gpulayer.protocol.types import CellSpec, JobSpec, JobView, Problem, State
from tests.support.processes import until

SPEC = JobSpec(cell=CellSpec(code="1"))
WAIT_S = 30.0


@pytest.fixture
def connection(plane: Any) -> Iterator[Connection]:
    connection = Connection(lambda: plane.endpoint)
    yield connection
    connection.close()


def update(n: int, state: State = State.RUNNING) -> Update:
    return Update(n=n, job=JobView(id="k3f9", state=state, attempt="a"))


def chunk(n: int, offset: int, data: bytes, attempt: str = "a") -> Chunk:
    return Chunk(n=n, attempt=attempt, offset=offset, data=data)


# ---------------------------------------------------------------- one connection


def test_a_job_is_submitted_and_followed(plane: Any, connection: Connection) -> None:
    subscription = connection.submit(SPEC, "key")
    visit = plane.visit()
    asked = visit.next()
    assert asked == Submit(n=subscription.n, key="key", spec=SPEC)
    visit.say(update(asked.n), chunk(asked.n, 0, b"one"))
    visit.say(chunk(asked.n, 3, b"two"), update(asked.n, State.SUCCEEDED))
    messages = [subscription.get(WAIT_S) for _ in range(4)]
    assert [getattr(m, "data", None) for m in messages] == [None, b"one", b"two", None]
    assert subscription.job == "k3f9"
    assert plane.tokens == ["Bearer secret"]
    assert connection.epoch == 3


def test_without_a_message_the_wait_ends(connection: Connection) -> None:
    subscription = connection.submit(SPEC, "key")
    assert subscription.get(0.01) is None
    assert subscription.empty()


def test_cancel_names_the_job(plane: Any, connection: Connection) -> None:
    subscription = connection.follow("k3f9")
    visit = plane.visit()
    assert visit.next() == Follow(n=subscription.n, job="k3f9")
    connection.cancel(subscription, give_up=True)
    assert visit.next() == CancelJob(n=subscription.n, job="k3f9", give_up=True)


def test_what_is_no_longer_followed_is_told_unless_it_is_over(plane: Any, connection: Connection) -> None:
    lives, over = connection.follow("one"), connection.follow("two")
    visit = plane.visit()
    for _ in range(2):
        visit.next()
    visit.say(update(lives.n), update(over.n, State.FAILED))
    for subscription in (over, lives):
        assert isinstance(subscription.get(WAIT_S), Update)
        connection.unfollow(subscription)
    assert visit.next() == Unfollow(n=lives.n)


def test_messages_go_to_whom_they_are_for(plane: Any, connection: Connection) -> None:
    first, second = connection.follow("one"), connection.follow("two")
    visit = plane.visit()
    for _ in range(2):
        visit.next()
    visit.say(chunk(second.n, 0, b"2"), chunk(999, 0, b"nobody's"), chunk(first.n, 0, b"1"))
    got = [subscription.get(WAIT_S) for subscription in (first, second)]
    assert [getattr(m, "data", None) for m in got] == [b"1", b"2"]


def test_a_look_at_messages_takes_none(plane: Any, connection: Connection) -> None:
    subscription = connection.follow("k3f9")
    visit = plane.visit()
    visit.next()
    visit.say(chunk(subscription.n, 0, b"1"), chunk(subscription.n, 1, b"2"))
    first = subscription.get(WAIT_S)
    assert isinstance(first, Chunk)
    subscription.give_back([first])
    assert not subscription.empty()
    assert [getattr(subscription.get(WAIT_S), "data", None) for _ in range(2)] == [b"1", b"2"]


def test_what_another_thread_reads_meanwhile_is_not_waited_for(
    plane: Any, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscription = connection.follow("k3f9")
    plane.visit().next()
    real, receive = connection._turn.of_caller, connection._receive

    @contextlib.contextmanager
    def after_the_others_reading() -> Iterator[bool]:
        with real() as mine:
            subscription.put(chunk(subscription.n, 0, b"1"))  # by the thread that had the turn until now
            yield mine

    def receives(*arguments: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            pytest.fail("it waits for more, though what it waits for has come")
        receive(*arguments)

    monkeypatch.setattr(connection._turn, "of_caller", after_the_others_reading)
    monkeypatch.setattr(connection, "_receive", receives)
    message = subscription.get(WAIT_S)
    assert isinstance(message, Chunk)
    assert message.data == b"1"


# ---------------------------------------------------------------- over restarts


def test_a_submission_that_was_not_answered_is_sent_again_with_its_key(plane: Any, connection: Connection) -> None:
    connection.submit(SPEC, "key")
    visit = plane.visit()
    first = visit.next()
    visit.leave()
    assert plane.visit().next() == first


def test_a_stream_goes_on_from_where_it_was(plane: Any, connection: Connection) -> None:
    subscription = connection.submit(SPEC, "key")
    visit = plane.visit()
    visit.next()
    visit.say(update(subscription.n), chunk(subscription.n, 0, b"12345"))
    for _ in range(2):
        assert subscription.get(WAIT_S) is not None
    visit.leave()
    again = plane.visit()
    assert again.next() == Follow(n=subscription.n, job="k3f9", attempt="a", offset=5)
    again.say(chunk(subscription.n, 5, b"678"))
    message = subscription.get(WAIT_S)
    assert isinstance(message, Chunk)
    assert message.data == b"678"


def test_another_attempts_stream_begins_at_its_begin(plane: Any, connection: Connection) -> None:
    subscription = connection.follow("k3f9")
    visit = plane.visit()
    visit.next()
    visit.say(chunk(subscription.n, 0, b"12345"), chunk(subscription.n, 0, b"1", attempt="b"))
    for _ in range(2):
        assert isinstance(subscription.get(WAIT_S), Chunk)
    visit.leave()
    assert plane.visit().next() == Follow(n=subscription.n, job="k3f9", attempt="b", offset=1)


def test_a_hole_in_the_stream_is_asked_for_again(plane: Any, connection: Connection) -> None:
    subscription = connection.follow("k3f9")
    visit = plane.visit()
    visit.next()
    visit.say(chunk(subscription.n, 0, b"12"), chunk(subscription.n, 5, b"6"))
    assert plane.visit().next() == Follow(n=subscription.n, job="k3f9", attempt="a", offset=2)
    assert isinstance(subscription.get(WAIT_S), Chunk)
    assert subscription.empty()


def test_what_is_over_is_not_asked_for_again(plane: Any, connection: Connection) -> None:
    done, lives = connection.follow("one"), connection.follow("two")
    visit = plane.visit()
    for _ in range(2):
        visit.next()
    connection.unfollow(done)
    assert visit.next() == Unfollow(n=done.n)
    visit.leave()
    assert plane.visit().next() == Follow(n=lives.n, job="two")


def test_while_nobody_answers_it_says_why(plane: Any, connection: Connection) -> None:
    connection.follow("k3f9")
    visit = plane.visit()
    visit.next()
    assert connection.wait_ready(WAIT_S)
    plane.welcomes = False
    visit.leave()
    plane.visit()
    until(lambda: connection.away, "a reason")
    assert "closed the connection" in connection.away
    assert not connection.wait_ready(0)


def test_where_it_is_is_asked_anew_at_every_try(plane: Any) -> None:
    asked = threading.Semaphore(0)

    def find() -> Any:
        asked.release()
        if not tries:
            return plane.endpoint
        raise tries.pop()

    tries = [OSError("no route"), WireClosed("refused")]
    connection = Connection(find)
    assert connection.wait_ready(WAIT_S)
    assert [asked.acquire(timeout=0) for _ in range(4)] == [True, True, True, False]
    connection.close()


# ---------------------------------------------------------------- for good


def test_a_control_plane_that_can_not_be_had_is_told_to_who_waits_and_tried_again_later(plane: Any) -> None:
    trouble = [ControlPlaneError("it did not start: disk full")]

    def find() -> Any:
        if trouble:
            raise trouble.pop()
        return plane.endpoint

    connection = Connection(find)
    with pytest.raises(ControlPlaneError, match="disk full"):
        connection.submit(SPEC, "key").get(WAIT_S)
    connection.submit(SPEC, "another")
    assert plane.visit().next().key == "another"
    connection.close()


def test_another_protocol_is_told_and_not_tried_again(plane: Any, connection: Connection) -> None:
    plane.welcomes = False
    subscription = connection.submit(SPEC, "key")
    visit = plane.visit()
    visit.next()  # the hello
    problem = Problem(status=426, code="protocol", title="client and control plane differ", detail="upgrade the client")
    visit.say(Refused(n=0, problem=problem))
    with pytest.raises(ControlPlaneError, match="client and control plane differ: upgrade the client"):
        subscription.get(WAIT_S)


def test_a_frame_that_is_none_breaks_the_connection(plane: Any, connection: Connection) -> None:
    subscription = connection.follow("k3f9")
    visit = plane.visit()
    visit.next()
    visit.raw(b"\xc1garbage")
    assert plane.visit().next() == Follow(n=subscription.n, job="k3f9")


# ---------------------------------------------------------------- a slow reader


def test_what_is_not_taken_waits_on_the_other_side(plane: Any, connection: Connection) -> None:
    subscription = connection.follow("k3f9")
    visit = plane.visit()
    visit.next()
    piece = b"x" * 1_000_000

    def pour() -> None:
        for n in range(40):
            visit.say(chunk(subscription.n, n * len(piece), piece))

    thread = threading.Thread(target=pour)
    thread.start()
    until(lambda: subscription._queued >= 4_000_000, "a full queue")
    taken, most = 0, 0
    while taken < 40 * len(piece):
        most = max(most, subscription._queued)
        message = subscription.get(WAIT_S)
        assert isinstance(message, Chunk)
        assert message.offset == taken
        taken += len(message.data)
    thread.join()
    assert most < 8_000_000


def test_nobody_waits_for_a_reader_that_left(plane: Any, connection: Connection) -> None:
    left, other = connection.follow("one"), connection.follow("two")
    visit = plane.visit()
    for _ in range(2):
        visit.next()
    piece = b"x" * 1_000_000
    thread = threading.Thread(
        target=lambda: (
            [visit.say(chunk(left.n, n * len(piece), piece)) for n in range(20)] and visit.say(chunk(other.n, 0, b"1"))
        )
    )
    thread.start()
    until(lambda: left._queued >= 4_000_000, "a full queue")
    connection.unfollow(left)
    assert isinstance(other.get(WAIT_S), Chunk)
    thread.join()


def test_a_subscription_alone_keeps_count() -> None:
    subscription = Subscription(1, job="k3f9")
    subscription.put(chunk(1, 0, b"12"))
    with pytest.raises(WireClosed, match="bytes 2 to 3 of the stream are missing"):
        subscription.put(chunk(1, 3, b"4"))


# ---------------------------------------------------------------- widgets


def test_a_word_for_a_widget_is_sent_by_any_thread_while_another_one_reads(plane: Any, connection: Connection) -> None:
    plane.comms = True
    subscription = connection.submit(SPEC, "key")
    visit = plane.visit()
    n = visit.next().n
    visit.say(update(n))
    assert subscription.get(WAIT_S) is not None
    came: list[object] = []
    reader = threading.Thread(target=lambda: came.append(subscription.get(WAIT_S)))
    reader.start()
    words = [[b"{}", bytes([number])] for number in range(100)]
    for each in words:
        connection.tell_widget("k3f9", "train", "comm_msg", each)
    told = [visit.next() for _ in words]
    assert [(each.job, each.session, each.kind, list(each.parts)) for each in told] == [
        ("k3f9", "train", "comm_msg", each) for each in words
    ]
    visit.say(Refused(n=told[0].n, problem=Problem(status=404, code="no_such_kernel", title="gone")), chunk(n, 0, b"x"))
    reader.join(WAIT_S)
    assert came == [chunk(n, 0, b"x")]  # that it went nowhere is nobody's trouble


def test_a_word_for_a_widget_has_a_limit(connection: Connection) -> None:
    with pytest.raises(ValueError, match=r"1\.0 MB for a widget on a worker is too much"):
        connection.tell_widget("k3f9", None, "comm_msg", [b"{}", bytes(COMM_BYTES)])


def test_a_control_plane_that_does_not_know_widgets_is_not_told(plane: Any, connection: Connection) -> None:
    subscription = connection.submit(SPEC, "key")
    visit = plane.visit()
    visit.next()
    assert connection.wait_ready(WAIT_S)
    connection.tell_widget("k3f9", None, "comm_msg", [b"{}", b"{}"])
    connection.cancel(subscription)
    assert not isinstance(visit.next(), ToKernel)
