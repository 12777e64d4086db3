"""Group commit on a thread."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import cast

import pytest

from gpulayer_server.store.committer import Committer
from gpulayer_server.store.database import Store, StoreError
from gpulayer_server.store.rows import Op


class Disk:
    """Stands in for a store: keeps what was committed, waits or fails when it is told to."""

    def __init__(self) -> None:
        self.transactions: list[list[list[Op]]] = []
        self.checkpoints: list[bool] = []  # which of them may take the time for one
        self.go = threading.Event()
        self.go.set()
        self.entered = threading.Semaphore(0)
        self.broken = False

    def commit(self, units: Iterable[Iterable[Op]], *, checkpoint: bool = True) -> None:
        taken = [list(unit) for unit in units]
        self.checkpoints.append(checkpoint)
        self.entered.release()
        assert self.go.wait(20)
        if self.broken:
            raise StoreError("the disk is full")
        self.transactions.append(taken)


class Answers:
    """What the committer says, in order."""

    def __init__(self) -> None:
        self.told: list[tuple[int, str]] = []
        self._news = threading.Condition()

    def __call__(self, count: int, error: StoreError | None) -> None:
        with self._news:
            self.told.append((count, str(error) if error else ""))
            self._news.notify_all()

    def wait(self, units: int) -> None:
        """Until so many units were answered."""
        with self._news:
            assert self._news.wait_for(lambda: sum(count for count, _ in self.told) >= units, 20)


def unit(name: str) -> list[Op]:
    return [(name, ())]


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
def committer(disk: Disk, answers: Answers) -> Iterator[Committer]:
    committer = Committer(cast(Store, disk), answers)
    yield committer
    disk.go.set()
    committer.close()


def test_what_waits_is_one_transaction_in_order(committer: Committer, disk: Disk, answers: Answers) -> None:
    disk.go.clear()
    committer.put([unit("first")])
    assert disk.entered.acquire(timeout=20)
    committer.put([unit("a"), unit("b")])
    committer.put([unit("c")])
    disk.go.set()
    answers.wait(4)
    assert disk.transactions == [[unit("first")], [unit("a"), unit("b"), unit("c")]]
    assert answers.told == [(1, ""), (3, "")]


def test_after_a_failure_everything_fails_until_the_reset(committer: Committer, disk: Disk, answers: Answers) -> None:
    disk.broken = True
    committer.put([unit("lost")])
    answers.wait(1)
    disk.broken = False
    committer.put([unit("decided on top of it"), unit("and this")])
    answers.wait(3)
    assert answers.told == [(1, "the disk is full"), (2, "the disk is full")]
    assert disk.transactions == []
    committer.reset()
    committer.put([unit("anew")])
    answers.wait(4)
    assert disk.transactions == [[unit("anew")]]
    assert answers.told[-1] == (1, "")


def test_the_end_commits_what_waits(disk: Disk, answers: Answers) -> None:
    committer = Committer(cast(Store, disk), answers)
    disk.go.clear()
    for name in ("a", "b", "c"):
        committer.put([unit(name)])
    disk.go.set()
    committer.close()
    assert [op for transaction in disk.transactions for op in transaction] == [unit("a"), unit("b"), unit("c")]


def results(data: bytes = b"y") -> list[Op]:
    return [("put_map", (1, 1)), ("put_results", (1, 1, data))]


def test_a_few_rows_of_calls_are_written_by_whoever_asks(committer: Committer, disk: Disk, answers: Answers) -> None:
    assert committer.at_once([results()])
    assert disk.transactions == [[results()]]
    assert disk.checkpoints == [False]
    assert answers.told == []  # who asked knows it


@pytest.mark.parametrize("units", [[unit("put_job")], [results()] * 9, [results(b"x" * 20_000)]])
def test_what_takes_longer_is_not(committer: Committer, disk: Disk, units: list[list[Op]]) -> None:
    assert not committer.at_once(units)
    assert disk.transactions == []


def test_now_and_then_the_thread_has_its_turn(committer: Committer, disk: Disk, answers: Answers) -> None:
    """It alone takes the time to move the log into the database."""
    while committer.at_once([results()]):
        assert len(disk.transactions) < 2000
    committer.put([results()])
    answers.wait(1)
    assert disk.checkpoints[-2:] == [False, True]
    assert committer.at_once([results()])


def test_what_can_not_be_written_at_once_says_so(committer: Committer, disk: Disk) -> None:
    disk.broken = True
    with pytest.raises(StoreError, match="full"):
        committer.at_once([results()])
    disk.broken = False
    assert committer.at_once([results()])
