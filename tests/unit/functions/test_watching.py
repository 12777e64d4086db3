"""Whether a function is still what it was."""

from __future__ import annotations

import pytest

from gpulayer.functions.watching import Watch
from gpulayer.protocol.values.calls import pack
from tests.support.sessions import Session

CELL = """
import functools
import math

RATE = 0.5
TABLE = {"a": [1]}

def deeper(x):
    return x + RATE

class Base:
    scale = 2

class Kept(Base):
    def run(self, x):
        return deeper(x) * self.scale

    @property
    def half(self):
        return RATE

def made(k):
    held = k

    def inner(x, start=[0]):
        return Kept().run(x) + held + TABLE["a"][0] + math.pi

    return inner

f = made(3)

@functools.lru_cache
def cached(x):
    return deeper(x)
"""


@pytest.fixture
def session() -> Session:
    return Session().cell(CELL)


def watched(session: Session, name: str = "f") -> Watch:
    return Watch(session[name], {"TABLE": session["TABLE"], "RATE": session["RATE"]}, pack)


def test_nothing_has_changed(session: Session) -> None:
    watch = watched(session)
    assert watch.unchanged()
    session.cell("elsewhere = 1\ndef another(): pass")
    assert watch.unchanged()


@pytest.mark.parametrize(
    "change",
    [
        "RATE = 0.75",
        "def deeper(x): return x",
        "del deeper",
        "Kept.run = lambda self, x: x",
        "Base.scale = 3",
        "class Kept: pass",
        "TABLE = {'a': [1], 'b': [2]}",
        "TABLE['a'].append(2)",
        "import cmath as math",
        "f.__code__ = (lambda x, start=[0]: x).__code__.replace(co_freevars=f.__code__.co_freevars)",
        "f.__defaults__ = ([1],)",
        "f.__closure__[0].cell_contents = 4",
    ],
)
def test_something_has(session: Session, change: str) -> None:
    watch = watched(session)
    session.cell(change)
    assert not watch.unchanged()


def test_strange_objects_are_not_asked(session: Session) -> None:
    session.cell("from unittest.mock import call\ndef g(): return call")
    assert Watch(session["g"], {}, pack).unchanged()


def test_through_a_decorator(session: Session) -> None:
    watch = watched(session, "cached")
    assert watch.unchanged()
    session.cell("RATE = 2")
    assert not watch.unchanged()


def test_an_attribute_that_a_class_gets_is_a_change(session: Session) -> None:
    watch = watched(session)
    session.cell("Base.__doc__ = 'told'")
    assert watch.unchanged()
    session.cell("Base.added = 3")
    assert not watch.unchanged()
