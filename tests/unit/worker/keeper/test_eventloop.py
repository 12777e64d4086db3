"""The loop: timers, descriptors and the hook after each batch."""

from __future__ import annotations

import os

from gpulayer_worker.keeper.eventloop import READ, Loop


def test_timers_run_in_the_order_of_their_time() -> None:
    loop, ran = Loop(), []

    def late() -> None:
        ran.append("late")
        loop.stop(7)

    loop.call_later(0.02, late)
    loop.call_later(0.0, lambda: ran.append("first"))
    loop.call_later(0.0, lambda: ran.append("second"))
    loop.call_later(0.01, lambda: ran.append("cancelled")).cancel()
    assert loop.run() == 7
    assert ran == ["first", "second", "late"]
    loop.close()


def test_a_callback_that_was_removed_in_the_same_batch_does_not_run() -> None:
    loop, ran = Loop(), []
    pipes = [os.pipe() for _ in range(2)]
    readers = [read for read, _ in pipes]

    def ready(fd: int) -> None:
        ran.append(fd)
        for reader in readers:
            loop.remove(reader)
        loop.stop(0)

    for read, write in pipes:
        os.write(write, b"x")
        loop.add(read, READ, lambda read=read: ready(read))
    loop.run()
    assert len(ran) == 1
    loop.close()
    for fd in (fd for pipe in pipes for fd in pipe):
        os.close(fd)


def test_the_hook_runs_after_each_batch_and_the_first_stop_counts() -> None:
    loop, ran = Loop(), []
    loop.after_batch = lambda: ran.append("hook")

    def timer() -> None:
        ran.append("timer")
        loop.stop(1)
        loop.stop(2)

    loop.call_later(0, timer)
    assert loop.run() == 1
    assert ran[-2:] == ["timer", "hook"]
    loop.close()
