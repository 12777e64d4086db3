"""Whose turn it is to read, and that nobody waits for a caller that does not come back."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import pytest

from gpulayer.client.reading import Turn

WAIT_S = 30


class OwnThread(threading.Thread):
    """Reads as a connection's own thread does: until it is woken; says so each time."""

    def __init__(self, turn: Turn):
        super().__init__()
        self.turn = turn
        self.reads: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.end = False

    def run(self) -> None:
        while not self.end:
            with self.turn.of_thread():
                self.reads.put("begins")
                self.turn.wake_end.setblocking(True)
                self.turn.wake_end.recv(100)
            self.reads.put("ends")

    def next(self) -> str:
        return self.reads.get(timeout=WAIT_S)


@pytest.fixture
def turn() -> Turn:
    return Turn()


@pytest.fixture
def thread(turn: Turn) -> Iterator[OwnThread]:
    thread = OwnThread(turn)
    thread.start()
    assert thread.next() == "begins"
    yield thread
    thread.end = True
    turn.wake()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    turn.close()


def test_a_caller_takes_the_turn_and_gives_it_back(turn: Turn, thread: OwnThread) -> None:
    with turn.of_caller() as mine:
        assert mine
        assert thread.next() == "ends"
        assert thread.reads.empty()
    with turn.of_caller() as mine:
        assert mine
    turn.give_back()
    assert thread.next() == "begins"


def test_a_caller_that_does_not_come_back_has_it_no_more(turn: Turn, thread: OwnThread) -> None:
    with turn.of_caller():
        assert thread.next() == "ends"
    assert thread.next() == "begins"
    with turn.of_caller() as mine:  # and may come again
        assert mine
        assert thread.next() == "ends"
    turn.give_back()
    assert thread.next() == "begins"


def test_of_two_callers_the_first_has_it(turn: Turn, thread: OwnThread) -> None:
    seen: list[bool] = []

    def other() -> None:
        with turn.of_caller() as mine:
            seen.append(mine)
        turn.give_back()

    with turn.of_caller():
        second = threading.Thread(target=other)
        second.start()
        second.join(WAIT_S)
    assert seen == [False]
    turn.give_back()
    third = threading.Thread(target=other)
    third.start()
    third.join(WAIT_S)
    assert seen == [False, True]
    assert thread.next() == "ends"
