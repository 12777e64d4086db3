"""Waiting for jobs, without anybody who answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from gpulayer.client import asks
from gpulayer.client.asks import Ask
from gpulayer.client.waiting import Step, all_ended, ended
from gpulayer.protocol.types import JobView, State


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def carry(
    steps: Step[Any], clock: Clock, answers: list[Any] | Callable[[Ask[Any]], Any], took_s: float = 10.0
) -> tuple[Any, list[str]]:
    """The result, and the paths that were asked."""
    asked: list[str] = []
    answer: Any = None
    try:
        while True:
            ask = steps.send(answer)
            asked.append(ask.path)
            clock.now += took_s
            answer = answers.pop(0) if isinstance(answers, list) else answers(ask)
    except StopIteration as end:
        return end.value, asked


def view(state: State) -> JobView:
    return JobView(id="a", state=state)


def test_one_is_asked_until_it_has_ended() -> None:
    answers = [view(State.QUEUED), view(State.RUNNING), view(State.FAILED)]
    result, asked = carry(ended("a", None, clock := Clock()), clock, answers)
    assert result.state is State.FAILED
    assert asked == ["/v1/jobs/a?wait=60.000"] * 3


def test_no_longer_than_a_person_wants() -> None:
    result, asked = carry(ended("a", 15.0, clock := Clock()), clock, [view(State.RUNNING)] * 9)
    assert result.state is State.RUNNING
    assert asked == ["/v1/jobs/a?wait=15.000", "/v1/jobs/a?wait=5.000"]


def test_many_by_few_requests() -> None:
    answers: list[Any] = [
        {"a": "succeeded", "b": "running", "c": "queued"},
        view(State.SUCCEEDED),
        {"b": "succeeded", "c": "failed"},
    ]
    result, asked = carry(all_ended(["a", "b", "c", "b"], None, clock := Clock()), clock, answers)
    assert result == {"a": State.SUCCEEDED, "b": State.SUCCEEDED, "c": State.FAILED}
    assert asked == ["/v1/jobs/states", "/v1/jobs/c?wait=60.000", "/v1/jobs/states"]


def test_one_that_is_not_there_is_not_waited_for() -> None:
    result, _ = carry(all_ended(["a", "zz"], None, clock := Clock()), clock, [{"a": "succeeded"}])
    assert result == {"a": State.SUCCEEDED}


def test_more_than_one_request_may_hold() -> None:
    sizes: list[int] = []

    def answer(ask: Ask[Any]) -> dict[str, str]:
        ids = msgspec.json.decode(ask.content or b"")["jobs"]
        sizes.append(len(ids))
        return dict.fromkeys(ids, "succeeded")

    result, _ = carry(all_ended([str(number) for number in range(25_000)], None, clock := Clock()), clock, answer)
    assert len(result) == 25_000
    assert sizes == [asks.BATCH_JOBS, asks.BATCH_JOBS, 5_000]
