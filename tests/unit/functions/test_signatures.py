"""Arguments that a function does not take, told before anything is sent."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import pytest

from gpulayer.functions.options import CallRefused
from gpulayer.functions.signatures import Signature


def plain(x: int, y: int = 2) -> int:
    return x + y


def rich(a: int, /, b: int, *more: int, by: float, **others: Any) -> None:
    """All kinds of parameters."""


class Model:
    def __init__(self, k: int):
        self.k = k

    def go(self, x: int) -> int:
        return x

    @staticmethod
    def still(x: int) -> int:
        return x

    @classmethod
    def of(cls, x: int) -> int:
        return x


@dataclass
class Point:
    x: int
    y: int = 0


class New:
    def __new__(cls, *args: int) -> New:
        return super().__new__(cls)


@functools.wraps(plain)
def loose(*args: int, **kwargs: int) -> int:
    return plain(1, **kwargs)


@pytest.mark.parametrize(
    ("signature", "args", "kwargs", "words"),
    [
        (Signature("f", plain), (), {}, "f: missing a required argument: 'x'; it is f(x, y=2)"),
        (Signature("f", plain), (1, 2, 3), {}, "f: too many positional arguments; it is f(x, y=2)"),
        (Signature("f", plain), (1,), {"z": 3}, "f: got an unexpected keyword argument 'z'; it is f(x, y=2)"),
        (Signature("f", plain), (1,), {"x": 3}, "f: multiple values for argument 'x'; it is f(x, y=2)"),
        (
            Signature("f", rich),
            (1, 2),
            {},
            "f: missing a required argument: 'by'; it is f(a, /, b, *more, by, **others)",
        ),
        (
            Signature.of_class("M.remote", Model),
            (),
            {},
            "M.remote: missing a required argument: 'k'; it is M.remote(k)",
        ),
        (Signature.of_class("P", Point), (1, 2, 3), {}, "P: too many positional arguments; it is P(x, y=0)"),
        (Signature.of_method("m.go", Model, "go"), (), {}, "m.go: missing a required argument: 'x'; it is m.go(x)"),
        (Signature.of_method("m.of", Model, "of"), (1, 2), {}, "m.of: too many positional arguments; it is m.of(x)"),
        (Signature.of_method("s", Model, "still"), (1, 2), {}, "s: too many positional arguments; it is s(x)"),
    ],
)
def test_what_it_does_not_take(signature: Signature, args: Any, kwargs: dict[str, Any], words: str) -> None:
    with pytest.raises(CallRefused) as refused:
        signature.check(args, kwargs)
    told = str(refused.value).replace("missing a required keyword-only argument", "missing a required argument")
    assert told == words  # Python 3.14 says of which kind
    with pytest.raises(TypeError, match=r"\(call 7\)"):
        signature.check(args, kwargs, 7)


@pytest.mark.parametrize(
    ("signature", "args", "kwargs"),
    [
        (Signature("f", plain), (1,), {}),
        (Signature("f", plain), (), {"y": 1, "x": 2}),
        (Signature("f", rich), (1, 2, 3, 4), {"by": 5, "a": 6, "z": 7}),
        (Signature.of_class("M", Model), (1,), {}),
        (Signature.of_class("N", New), (1, 2), {}),  # told there
        (Signature.of_method("m.go", Model, "go"), (1,), {}),
        (Signature.of_method("m.of", Model, "of"), (), {"x": 1}),
        (Signature("f", loose), (1, 2, 3), {}),  # what it wraps does not say what it takes
        (Signature("f", print), (1,), {"nothing": 1}),
    ],
)
def test_what_it_takes(signature: Signature, args: Any, kwargs: dict[str, Any]) -> None:
    checked: Any = signature.check(args, kwargs)
    assert checked is None
