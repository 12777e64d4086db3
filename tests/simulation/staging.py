"""Stages a situation in a small quiet world of its own. Pytest runs each, and so does every mutant."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

from gpulayer.protocol.types import JobView
from gpulayer_server.core.state import Attempt, Task
from tests.simulation.plans import Plan
from tests.simulation.world import World

#: Makes a world that has run for five seconds.
Make = Callable[..., World]
Scenario = Callable[[Make], None]

_MODULES = (
    "tests.simulation.situations",
    "tests.simulation.situations_of_words",
    "tests.simulation.situations_of_commands",
    "tests.simulation.situations_of_fleets",
    "tests.simulation.situations_of_room",
    "tests.simulation.situations_of_calls",
    "tests.simulation.situations_of_callers",
    "tests.simulation.situations_of_lost_words",
    "tests.simulation.situations_of_runners",
)
_scenarios: dict[str, Callable[[], None]] = {}


def staged(**choices: list[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Registers a situation; with `choices`, once for each combination of them."""

    def register(scenario: Callable[..., None]) -> Callable[..., None]:
        for values in itertools.product(*choices.values()):
            given = dict(zip(choices, values, strict=True))
            name = "-".join([scenario.__name__, *(f"{key}={value}" for key, value in given.items())])
            _scenarios[name] = partial(_run, partial(scenario, **given))
        return scenario

    return register


def scenarios() -> dict[str, Callable[[], None]]:
    """All that are staged, by name; calling one runs it."""
    for module in _MODULES:
        importlib.import_module(module)
    return _scenarios


def _run(scenario: Scenario) -> None:
    """What a world says of itself is kept in `world.said`."""
    worlds: list[World] = []

    def make(seed: int = 1, **plan: object) -> World:
        said: list[str] = []
        world = World(seed, Plan(**plan), said.append)  # type: ignore[arg-type]
        world.said = said  # type: ignore[attr-defined]
        worlds.append(world)
        world.start()
        world.run(5.0)
        return world

    try:
        scenario(make)
    finally:
        for world in worlds:
            world.close()


def only_task(world: World) -> Task:
    """The task of the only job."""
    tasks = [*world.control_plane.plane.tasks.values()]
    assert len(tasks) == 1
    return tasks[0]


def attempt_of(task: Task) -> Attempt:
    """Its current attempt, which must be there."""
    assert task.attempt is not None
    return task.attempt


def ended(world: World) -> list[JobView]:
    """Everything comes to its end and is right; then all that was told last."""
    world.settle()
    return list(world.truth.views.values())


def said(world: World, *words: str) -> list[str]:
    """The lines of the trace with all of these words."""
    return [line for line in world.said if all(word in line for word in words)]  # type: ignore[attr-defined]
