"""The pauses between an agent's starts."""

from __future__ import annotations

import itertools

from gpulayer_worker.keeper.agent import jittered, next_pause_s


def test_the_pauses_double_up_to_ten_seconds() -> None:
    pauses = list(itertools.accumulate([0.0] * 10, lambda last, _: next_pause_s(last, 0.0)))
    assert pauses == [0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]


def test_an_agent_that_lived_a_while_begins_anew() -> None:
    assert next_pause_s(10.0, 29.9) == 10.0
    assert next_pause_s(10.0, 30.0) == 0.1


def test_jitter_keeps_at_least_half_of_a_pause() -> None:
    pauses = [jittered(8.0) for _ in range(200)]
    assert all(4.0 <= pause <= 8.0 for pause in pauses)
    assert len(set(pauses)) > 100
