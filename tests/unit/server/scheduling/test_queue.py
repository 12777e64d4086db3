"""First in, first out within a class."""

from __future__ import annotations

from gpulayer_server.scheduling.queue import Queue


def filled() -> Queue:
    queue = Queue()
    for order, (key, task) in enumerate([("x", "x0"), ("y", "y0"), ("x", "x1"), ("y", "y1"), ("x", "x2")]):
        queue.add(key, task, order)
    return queue


def test_an_empty_queue():
    queue = Queue()
    assert (len(queue), list(queue), queue.classes(), queue.head("x"), queue.members("x")) == (0, [], [], None, [])
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
    queue.add("x", "x1", 2)
    assert queue.members("x") == ["x1", "x2"]
    queue.add("x", "x0", 0)
    assert queue.members("x") == ["x0", "x1", "x2"]
    queue.add("x", "x3", 9)
    assert queue.members("x") == ["x0", "x1", "x2", "x3"]


def test_the_class_whose_head_waits_longest_is_first():
    queue = filled()
    assert queue.classes() == ["x", "y"]
    queue.remove("x0")
    assert queue.classes() == ["y", "x"]


def test_a_class_ends_with_its_last_task():
    queue = filled()
    for task in ("y0", "y1"):
        queue.remove(task)
    assert queue.classes() == ["x"]
    assert queue.head("y") is None
