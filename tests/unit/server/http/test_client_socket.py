"""The clients' websocket: what is said when, and to whom."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from gpulayer.protocol.messages import CancelAttempt, CancelJob, Chunk, Follow, Refused, Submit, Unfollow, Update
from gpulayer.protocol.records import Splitter, encode_text
from gpulayer.protocol.types import CellSpec, CommandSpec, JobSpec, State
from tests.support.processes import until

SPEC = JobSpec(cell=CellSpec(code="1"))


def submitted(client: Any, worker: Any, key: str = "key", n: int = 1) -> str:
    """A job that was submitted, and taken by the worker: its attempt."""
    client.say(Submit(n=n, key=key, spec=SPEC))
    return worker.assigned().attempt


def states_and_text(client: Any) -> list[str]:
    """What the client is sent up to the job's end, in order: states, and texts of the stream."""
    came: list[str] = []
    splitter = Splitter()
    while True:
        message = client.next()
        if isinstance(message, Chunk):
            came += [bytes(body[1:]).decode() for _, _, body in splitter.feed(message.data)]
        elif isinstance(message, Update):
            came.append(message.job.state.value)
            if message.job.terminal:
                return came


# ---------------------------------------------------------------- submitting


def test_the_first_answer_names_the_job(client: Any) -> None:
    client.say(Submit(n=7, key="key", spec=SPEC))
    answer = client.next()
    assert isinstance(answer, Update)
    assert (answer.n, answer.job.state) == (7, State.REJECTED)  # there is no worker
    assert answer.job.reasons


def test_the_same_key_is_the_same_job(client: Any, worker: Any) -> None:
    client.say(Submit(n=1, key="key", spec=SPEC, follow=False), Submit(n=2, key="key", spec=SPEC, follow=False))
    first, second = client.until(Update), client.until(Update)
    assert (first.n, second.n) == (1, 2)
    assert first.job.id == second.job.id
    client.say(Submit(n=3, key="key", spec=JobSpec(cell=CellSpec(code="2"))))
    refused = client.until(Refused)
    assert (refused.n, refused.problem.status, refused.problem.code) == (3, 409, "key_conflict")


@pytest.mark.parametrize(
    ("asked", "status", "code"),
    [
        ({"bundle": "ab" * 32}, 409, "bundle_unknown"),
        ({"bundle": "../x"}, 400, "bad_request"),
        ({"inputs": "ab" * 32}, 409, "inputs_unknown"),
        ({"inputs": "../x"}, 400, "bad_request"),
    ],
)
def test_a_bundle_or_values_that_are_not_here_are_refused_and_the_connection_stays(
    client: Any, asked: dict[str, Any], status: int, code: str
) -> None:
    client.say(Submit(n=1, key="k", spec=JobSpec(cell=CellSpec(code="1", **asked))))
    refused = client.until(Refused)
    assert (refused.problem.status, refused.problem.code) == (status, code)
    client.say(Submit(n=2, key="k2", spec=SPEC))
    assert client.until(Update).n == 2


# ---------------------------------------------------------------- following


def test_states_and_output_come_in_order_and_the_end_last(client: Any, worker: Any) -> None:
    attempt = submitted(client, worker)
    worker.begin(attempt)
    end = worker.print(attempt, "one")
    end = worker.print(attempt, "two", end)
    worker.finish(attempt, end)
    came = states_and_text(client)
    assert [word for word in came if word in ("one", "two")] == ["one", "two"]
    assert came[-1] == "succeeded"
    assert came.index("two") < came.index("succeeded")


def test_the_end_is_never_ahead_of_the_output(client: Any, worker: Any) -> None:
    """Twenty jobs that are over at once: begin, output and end in one frame."""
    for n in range(1, 21):
        attempt = submitted(client, worker, f"key{n}", n)
        worker.begin(attempt)
        worker.finish(attempt, worker.print(attempt, f"text {n}"))
        came = states_and_text(client)
        assert f"text {n}" in came
        assert came[-1] == "succeeded"


def test_a_job_of_the_past_is_given_whole(client: Any, worker: Any, new_client: Callable[..., Any]) -> None:
    attempt = submitted(client, worker)
    worker.begin(attempt)
    worker.finish(attempt, worker.print(attempt, "one"))
    assert states_and_text(client)[-1] == "succeeded"
    other = new_client()
    other.say(Follow(n=1, job=attempt.split("-")[0]))
    assert states_and_text(other) == ["one", "succeeded"]


def test_two_clients_see_the_same(client: Any, worker: Any, new_client: Callable[..., Any]) -> None:
    attempt = submitted(client, worker)
    worker.begin(attempt)
    end = worker.print(attempt, "one")
    other = new_client()
    other.say(Follow(n=5, job=attempt.split("-")[0]))
    end = worker.print(attempt, "two", end)
    worker.finish(attempt, end)
    for each in (client, other):
        assert [word for word in states_and_text(each) if word in ("one", "two")] == ["one", "two"]


@pytest.mark.parametrize("from_offset", [0, 5, 1000])
def test_a_stream_goes_on_from_any_byte(
    client: Any, worker: Any, new_client: Callable[..., Any], from_offset: int
) -> None:
    attempt = submitted(client, worker)
    worker.begin(attempt)
    end = worker.print(attempt, "x" * 2000)
    whole = encode_text(1, b"x" * 2000)
    other = new_client()
    other.say(Follow(n=1, job=attempt.split("-")[0], attempt=attempt, offset=from_offset))
    chunk = other.until(Chunk)
    assert (chunk.attempt, chunk.offset) == (attempt, from_offset)
    assert whole[from_offset:].startswith(chunk.data)
    worker.finish(attempt, end)


def test_an_offset_of_another_attempt_does_not_count(client: Any, worker: Any, new_client: Callable[..., Any]) -> None:
    attempt = submitted(client, worker)
    worker.begin(attempt)
    end = worker.print(attempt, "x" * 100)
    other = new_client()
    other.say(Follow(n=1, job=attempt.split("-")[0], attempt="an-earlier-one", offset=50))
    assert other.until(Chunk).offset == 0
    worker.finish(attempt, end)


def test_an_unknown_job_is_refused(client: Any) -> None:
    client.say(Follow(n=4, job="zzzz"))
    refused = client.until(Refused)
    assert (refused.n, refused.problem.status) == (4, 404)


def test_who_follows_no_more_hears_no_more(client: Any, worker: Any, plane: Any) -> None:
    attempt = submitted(client, worker)
    client.until(Update)
    client.say(Unfollow(n=1), Follow(n=9, job="zzzz"))
    client.until(Refused)  # so the unfollow was seen
    worker.begin(attempt)
    worker.finish(attempt, worker.print(attempt, "x"))
    until(lambda: not plane.do(lambda: plane.service.shell.plane.jobs), "the job's end")
    client.say(Follow(n=9, job="zzzz"))
    assert isinstance(client.next(), Refused)


def test_a_slow_client_gets_all_of_it_and_nothing_piles_up(
    worker: Any, new_client: Callable[..., Any], plane: Any
) -> None:
    slow = new_client(max_queue=1)
    attempt = submitted(slow, worker)
    worker.begin(attempt)
    end = 0
    for _ in range(100):
        end = worker.print(attempt, "x" * 250_000, end)
    worker.finish(attempt, end)
    until(lambda: plane.do(lambda: plane.service.shell.streams.length(attempt)) == end, "the stream")
    sockets = plane.do(lambda: list(plane.service.shell.clients))
    buffered = plane.do(lambda: [len(s.ws_connection.stream._write_buffer) for s in sockets])
    assert max(buffered) < 2_000_000
    assert states_and_text(slow).count("x" * 250_000) == 100


def test_a_client_that_goes_away_hurts_nobody(
    worker: Any, client: Any, new_client: Callable[..., Any], plane: Any
) -> None:
    gone = new_client()
    attempt = submitted(gone, worker)
    gone.close()
    until(lambda: plane.do(lambda: len(plane.service.shell.clients)) == 1, "its end")
    worker.begin(attempt)
    worker.finish(attempt, worker.print(attempt, "x"))
    client.say(Follow(n=1, job=attempt.split("-")[0]))
    assert states_and_text(client)[-1] == "succeeded"
    assert plane.do(lambda: dict(plane.service.shell.followers)) == {}


# ---------------------------------------------------------------- one task of many


def an_array(client: Any, worker: Any) -> list[str]:
    """An array of two commands that the worker has, nobody follows it; the attempts."""
    spec = JobSpec(command=CommandSpec(argv=("run",)), array=((3, 4),))
    client.say(Submit(n=1, key="key", spec=spec, follow=False))
    client.until(Update)
    return [worker.assigned().attempt for _ in range(2)]


def test_one_task_is_followed_to_its_end_while_others_go_on(client: Any, worker: Any) -> None:
    attempts = an_array(client, worker)
    client.say(Follow(n=2, job=attempts[0].split("-")[0], index=4))
    assert client.until(Update).job.attempt == attempts[1]
    for attempt in attempts:
        worker.begin(attempt)
    worker.print(attempts[0], "not this")
    worker.finish(attempts[1], worker.print(attempts[1], "but this"))
    told = states_and_text(client)
    assert told[-1] == "succeeded"
    assert told.count("but this") == 1
    assert "not this" not in told


def test_a_whole_array_is_followed_with_the_stream_of_its_first_task(client: Any, worker: Any) -> None:
    attempts = an_array(client, worker)
    client.say(Follow(n=2, job=attempts[0].split("-")[0]))
    for attempt in attempts:
        worker.begin(attempt)
    worker.finish(attempts[1], worker.print(attempts[1], "not this"))
    worker.finish(attempts[0], worker.print(attempts[0], "but this"))
    told = states_and_text(client)
    assert told[-1] == "succeeded"
    assert "but this" in told
    assert "not this" not in told


def test_a_task_that_is_not_there_is_refused(client: Any, worker: Any) -> None:
    attempts = an_array(client, worker)
    job = attempts[0].split("-")[0]
    client.say(Follow(n=2, job=job, index=5))
    assert client.until(Refused).problem.title == f"job {job} has no task 5"


# ---------------------------------------------------------------- cancelling


def test_a_wish_to_cancel_reaches_the_worker_and_is_shown(client: Any, worker: Any) -> None:
    attempt = submitted(client, worker)
    worker.begin(attempt)
    client.say(CancelJob(n=1, job=attempt.split("-")[0]))
    assert worker.until(CancelAttempt).attempt == attempt
    while not client.until(Update).job.cancelling:
        pass
    worker.finish(attempt, 0, State.CANCELLED)
    assert states_and_text(client)[-1] == "cancelled"


def test_an_unknown_job_can_not_be_cancelled(client: Any) -> None:
    client.say(CancelJob(n=3, job="zzzz"))
    refused = client.until(Refused)
    assert (refused.n, refused.problem.code) == (3, "no_such_job")


# ---------------------------------------------------------------- while commits are on their way


def test_who_comes_while_the_end_is_being_written_is_told_of_it(
    client: Any, worker: Any, new_client: Callable[..., Any], plane: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = plane.service.shell
    attempt = submitted(client, worker)
    client.say(Unfollow(n=1))
    until(lambda: not plane.do(lambda: shell.followers or shell._outbox), "quiet")
    disk, commit = threading.Semaphore(0), shell.store.commit

    def slow(units: Any) -> None:
        assert disk.acquire(timeout=30)
        commit(units)

    def waiting(units: int) -> None:
        until(lambda: plane.do(lambda: len(shell._outbox)) >= units, f"{units} units in the outbox")

    monkeypatch.setattr(shell.store, "commit", slow)
    try:
        worker.begin(attempt)
        waiting(1)
        late = new_client()
        late.say(Follow(n=1, job=attempt.split("-")[0]))
        waiting(2)
        worker.finish(attempt, worker.print(attempt, "x"))
        waiting(3)  # the job's end, and its release: the plane has let go of it
        disk.release()
        assert late.until(Update).job.state is State.RUNNING  # what is committed, and nothing more
    finally:
        disk.release(100)
    assert states_and_text(late)[-1] == "succeeded"
