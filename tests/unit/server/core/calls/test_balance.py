"""Windows keep every runner busy, and none has much left when the others have nothing."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from tests.unit.server.core.calls.model import Model


def warmed(workers: int, seconds: float = 0.0) -> Model:
    """Runners everywhere, that did calls of some length before."""
    model = Model(workers)
    model.map(workers, lambda _: 1.0)
    if seconds:
        model.map(4 * workers, lambda _: seconds)
    assert len(model.runners) == workers
    return model


def ran_once(model: Model, count: int) -> bool:
    """Whether each call ran exactly once."""
    return Counter(model.ran) == Counter(range(count))


@pytest.mark.parametrize("before_s", [0.0, 20e-6, 20.0])
def test_two_thousand_calls_of_20_us_are_balanced(before_s: float) -> None:
    model = warmed(2, before_s)
    took = model.map(2000, lambda _: 20e-6, at_once=False)
    ideal = 2000 * 20e-6 / 2
    assert took <= 1.15 * ideal
    assert ran_once(model, 2000)
    assert model.messages < 60


@pytest.mark.parametrize("before_s", [0.0, 20e-6, 20.0])
def test_fifty_calls_of_20_s_are_balanced(before_s: float) -> None:
    for workers in (2, 4):
        model = warmed(workers, before_s)
        took = model.map(50, lambda _: 20.0)
        ideal = -(-50 // workers) * 20.0
        assert took <= 1.15 * ideal
        assert ran_once(model, 50)


@pytest.mark.parametrize("seed", range(6))
def test_uneven_calls_are_balanced(seed: int) -> None:
    rng = Random(seed)
    for scale in (0.02, 0.2, 2.0):
        lengths = [scale * rng.choice((0.05, 0.2, 1.0, 1.0, 2.0)) for _ in range(50)]
        model = warmed(2, 20e-6)
        took = model.map(50, lengths.__getitem__)
        ideal = max(sum(lengths) / 2, max(lengths))
        assert took <= 1.15 * ideal
        assert ran_once(model, 50)


def test_a_long_call_among_short_ones_keeps_nobody_waiting() -> None:
    model = warmed(2, 20e-6)
    took = model.map(2000, lambda n: 3.0 if n == 1200 else 1e-3)
    assert took <= 1.15 * 3.0 + 1.2
    assert ran_once(model, 2000)


def test_a_map_that_begins_with_one_runner_gets_more() -> None:
    model = Model(4)
    model.map(1, lambda _: 0.01)
    assert len(model.runners) == 1
    took = model.map(100, lambda _: 0.5)
    assert len(model.runners) == 4
    assert took <= 1.15 * 100 * 0.5 / 4
    assert ran_once(model, 100)


def test_short_calls_get_no_further_runner() -> None:
    model = Model(4)
    model.map(1, lambda _: 0.01)
    model.map(2000, lambda _: 20e-6)
    model.map(2000, lambda _: 20e-6)
    assert len(model.runners) == 1
    assert ran_once(model, 2000)
