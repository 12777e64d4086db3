"""By priority, then first in, first out within a class."""

from __future__ import annotations

from collections.abc import Hashable

from hypothesis import given
from hypothesis import strategies as st

from gpulayer_server.scheduling.queue import Queue


def classes(queue: Queue) -> list[Hashable]:
    return [key for _, key in queue.heads()]


def filled() -> Queue:
    queue = Queue()
    for order, (key, task) in enumerate([("x", "x0"), ("y", "y0"), ("x", "x1"), ("y", "y1"), ("x", "x2")]):
        queue.add(key, task, (0, order, 0))
    return queue


def test_an_empty_queue():
    queue = Queue()
    assert (len(queue), list(queue), queue.heads(), queue.head("x"), queue.members("x")) == (0, [], [], None, [])
    assert queue.ahead_of("t") == 0


def test_tasks_wait_in_order_within_their_class():
    queue = filled()
    assert queue.members("x") == ["x0", "x1", "x2"]
    assert (queue.head("x"), queue.head("y")) == ("x0", "y0")
    assert list(queue) == ["x0", "y0", "x1", "y1", "x2"]
    assert (len(queue), "y1" in queue, "z" in queue) == (5, True, False)


def test_only_tasks_of_the_same_class_are_ahead():
    assert [filled().ahead_of(task) for task in ("x0", "y1", "x2", "unknown")] == [0, 1, 2, 0]


def test_a_task_leaves_from_wherever_it_stands():
    queue = filled()
    queue.remove("x1")
    assert queue.members("x") == ["x0", "x2"]
    assert "x1" not in queue
    queue.remove("x1")
    assert len(queue) == 4


def test_a_task_that_comes_back_goes_before_later_ones():
    queue = filled()
    queue.remove("x0")
    queue.remove("x1")
    queue.add("x", "x1", (0, 2, 0))
    assert queue.members("x") == ["x1", "x2"]
    queue.add("x", "x0", (0, 0, 0))
    assert queue.members("x") == ["x0", "x1", "x2"]
    queue.add("x", "x3", (0, 9, 0))
    assert queue.members("x") == ["x0", "x1", "x2", "x3"]


def test_the_class_whose_head_waits_longest_is_first():
    queue = filled()
    assert classes(queue) == ["x", "y"]
    queue.remove("x0")
    assert classes(queue) == ["y", "x"]


def test_a_class_ends_with_its_last_task():
    queue = filled()
    for task in ("y0", "y1"):
        queue.remove(task)
    assert classes(queue) == ["x"]
    assert queue.head("y") is None


def test_a_higher_priority_goes_first_and_an_array_in_the_order_of_its_indices():
    queue = Queue()
    for task, order in [("a/1", (0, 1, 1)), ("a/0", (0, 1, 0)), ("b/0", (-5, 2, 0)), ("c/0", (3, 0, 0))]:
        queue.add("x", task, order)
    assert queue.members("x") == ["b/0", "a/0", "a/1", "c/0"]
    assert queue.order("x") == (-5, 2, 0)
    queue.add("y", "d/0", (-9, 3, 0))
    assert classes(queue) == ["y", "x"]
    assert queue.order("z") is None


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 400)), max_size=900))
def test_a_queue_is_a_sorted_list_whatever_comes_and_goes(moves: list[tuple[bool, int]]):
    """Tasks are added, and the first or any other is taken out."""
    queue, model = Queue(), set[int]()
    for first, number in moves:
        if number not in model:
            queue.add("x", f"{number}", (0, number, 0))
            model.add(number)
        else:
            gone = min(model) if first else number
            queue.remove(f"{gone}")
            model.discard(gone)
    assert queue.members("x") == [f"{number}" for number in sorted(model)]
    assert [queue.ahead_of(f"{number}") for number in sorted(model)] == list(range(len(model)))


def test_a_long_queue_is_taken_from_its_head():
    queue = Queue()
    for number in range(2_000):
        queue.add("x", f"{number}", (0, number, 0))
    for number in range(1_999):
        assert queue.head("x") == f"{number}"
        queue.remove(f"{number}")
    assert queue.members("x") == ["1999"]
    queue.add("x", "0", (0, 0, 0))
    assert queue.members("x") == ["0", "1999"]
