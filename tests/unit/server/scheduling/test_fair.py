"""Within one priority that owner's turn comes who holds least; within one owner that of who came first."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from gpulayer_server.scheduling.fair import DEVICE_WEIGHT, Turns, Usage
from gpulayer_server.scheduling.queue import Queue


@dataclass(frozen=True)
class Held:
    """What somebody holds."""

    owner: str
    devices: tuple[object, ...] = ()


@dataclass
class Line:
    """A queue of which all can be placed, and what its owners hold."""

    queue: Queue[str] = field(default_factory=lambda: Queue[str](lambda key: key[0], lambda key: key[1:]))
    usage: Usage = field(default_factory=Usage)
    n: int = 0

    def add(self, *keys: str, priority: int = 0) -> None:
        """Tasks of classes, whose first letter is the owner; the rest is what they demand."""
        for key in keys:
            self.n += 1
            self.queue.add(key, f"{key}{self.n}", (-priority, self.n, 0))

    def placed(self, most: int = 1000, *, wanted: str = "") -> list[str]:
        """Everything that can be placed, in order; `wanted`: only classes of this demand."""
        turns = Turns(self.queue, self.usage.weight, lambda key: key.endswith(wanted), [wanted] if wanted else None)
        order: list[str] = []
        while len(order) < most and (key := turns.next()) is not None:
            bound = turns.bound()
            while (first := self.queue.order(key)) is not None and first <= bound and len(order) < most:
                order.append(self.queue.head(key) or "")
                self.queue.remove(order[-1])
                self.usage.add(Held(key[0]))
        return order


def test_of_one_owner_who_came_first_goes_first():
    line = Line()
    line.add("a1", "a2", "a1", "a1", "a2")
    assert line.placed() == ["a11", "a22", "a13", "a14", "a25"]


def test_two_owners_take_turns_whoever_asked_for_more():
    line = Line()
    line.add(*["a1"] * 5, "b1", "b1")
    assert line.placed() == ["a11", "b16", "a12", "b17", "a13", "a14", "a15"]


def test_who_holds_more_waits_until_the_other_holds_as_much():
    line = Line()
    line.usage.add(Held("a", devices=(1,)))
    line.add("a1", *["b1"] * (DEVICE_WEIGHT + 2))
    order = line.placed()
    assert order.index("a11") == DEVICE_WEIGHT + 1
    line.usage.remove(Held("a", devices=(1,)))
    assert line.usage.weight("a") == 1


def test_priority_goes_before_fairness():
    line = Line()
    line.usage.add(Held("a"))
    line.add("b1", "a1")
    line.add("a1", priority=3)
    assert line.placed() == ["a13", "b11", "a12"]


def test_a_class_whose_next_task_has_another_priority_comes_again_in_its_place():
    line = Line()
    line.add("a1", priority=5)
    line.add("a2", priority=3)
    line.add("a1", "a2")
    assert line.placed() == ["a11", "a22", "a13", "a24"]


def test_only_what_is_demanded_is_looked_at_and_what_is_fresh():
    line = Line()
    line.add("a1", "a2", "b2")
    assert line.queue.fresh.keys() == {"a1", "a2", "b2"}
    line.queue.fresh.clear()
    line.add("a1")  # not the first of its class
    assert line.placed(wanted="2") == ["a22", "b23"]
    assert line.queue.head("a1") == "a11"


def test_an_owner_who_holds_nothing_is_not_remembered():
    usage = Usage()
    usage.add(Held("a"))
    usage.remove(Held("a"))
    assert (usage.of, usage.weight("a")) == ({}, 0)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("12"), st.sampled_from((0, 0, 4))), max_size=40))
def test_the_order_is_that_of_a_simple_search(made: list[tuple[str, str, int]]):
    line, waiting, held = Line(), list[tuple[int, int, str, str]](), {"a": 0, "b": 0, "c": 0}
    for owner, demand, priority in made:
        line.add(owner + demand, priority=priority)
        waiting.append((-priority, line.n, owner, f"{owner}{demand}{line.n}"))
    expected: list[str] = []
    while waiting:
        first = min(waiting, key=lambda each: (each[0], held[each[2]], each[1]))
        waiting.remove(first)
        held[first[2]] += 1
        expected.append(first[3])
    assert line.placed() == expected
