"""Built-in types: what goes in comes back; what cannot is refused by a line that leads to it."""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import io
import math
import pathlib
import struct
import sys
import types
import uuid
import zoneinfo
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulayer.protocol.values import ValueRefused, decode, encode
from tests.unit.protocol.values.equality import assert_same

NANS = st.integers(0x7FF0000000000001, 0x7FFFFFFFFFFFFFFF).map(
    lambda bits: struct.unpack("<d", struct.pack("<Q", bits))[0]
)
FLOATS = st.floats() | NANS | st.sampled_from([-0.0, math.inf, -math.inf])
TEXT = st.text() | st.text(st.characters(categories=["Cs", "Lu", "So"]))
ZONES = (
    st.none()
    | st.just(datetime.timezone.utc)
    | st.builds(datetime.timezone, st.timedeltas(datetime.timedelta(hours=-23), datetime.timedelta(hours=23)))
    | st.builds(datetime.timezone, st.just(datetime.timedelta(hours=2)), st.text(max_size=5))
    | st.sampled_from(["Europe/Berlin", "Asia/Kathmandu", "UTC"]).map(zoneinfo.ZoneInfo)
)
MOMENTS = (
    st.dates()
    | st.timedeltas()
    | st.times(timezones=ZONES)
    | st.datetimes(timezones=ZONES)
    | st.datetimes(timezones=ZONES).map(lambda moment: moment.replace(fold=1))
)
BIG = (
    st.integers()
    | st.integers(-(1 << 400), 1 << 400)
    | st.sampled_from([-(1 << 63) - 1, -(1 << 63), 1 << 63, (1 << 64) - 1, 1 << 64])
)
COMPLEX = st.builds(complex, FLOATS, FLOATS)
ATOMS = st.none() | st.booleans() | BIG | FLOATS | COMPLEX | TEXT | st.binary() | MOMENTS
KEYS = st.recursive(
    ATOMS, lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3), max_leaves=4
)
LEAVES = ATOMS | st.binary(min_size=4090, max_size=4100) | st.binary().map(bytearray) | st.sets(KEYS, max_size=4)


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    items = st.lists(inner, max_size=5)
    return items | items.map(tuple) | st.dictionaries(KEYS, inner, max_size=4)


VALUES = st.recursive(
    LEAVES | KEYS | st.lists(st.integers()) | st.lists(FLOATS) | st.lists(TEXT), containers, max_leaves=12
)


class Point(NamedTuple):
    x: int = 1


class Colour(enum.IntEnum):
    RED = 1


class Text(str):
    pass


class Sub(datetime.datetime):
    pass


class Plain:
    pass


class Unknown(datetime.tzinfo):
    def utcoffset(self, _when: datetime.datetime | None) -> datetime.timedelta:
        return datetime.timedelta(0)


def opened() -> Any:
    return io.TextIOWrapper(io.BytesIO(b"x"))


REFUSED = st.sampled_from(
    [
        Point(),
        Colour.RED,
        Text("x"),
        Sub(2026, 1, 1),
        Plain(),
        Plain,
        len,
        lambda: 1,
        sys,
        opened(),
        object(),
        ...,
        NotImplemented,
        range(3),
        slice(3),
        iter([1]),
        memoryview(b"x"),
        collections.OrderedDict(a=1),
        collections.defaultdict(int),
        collections.Counter("a"),
        collections.deque([1]),
        {}.keys(),
        types.SimpleNamespace(a=1),
        types.MappingProxyType({}),
        decimal.Decimal(1),
        uuid.UUID(int=1),
        pathlib.PurePosixPath("x"),
        datetime.datetime(2026, 1, 1, tzinfo=Unknown()),
        ValueError("x"),
    ]
)


@given(VALUES)
@settings(max_examples=150, deadline=None)
def test_a_value_comes_back_equal_and_of_the_same_type(value: Any) -> None:
    assert_same(decode(encode(value)), value)


@given(VALUES)
@settings(max_examples=100, deadline=None)
def test_parts_may_be_bytes_bytearrays_or_views(value: Any) -> None:
    parts = encode(value)
    assert_same(decode([bytes(part) for part in parts]), value)
    assert_same(decode([memoryview(bytearray(part)) for part in parts]), value)


@given(VALUES, REFUSED, st.lists(st.sampled_from(["list", "tuple", "dict"]), max_size=6))
@settings(max_examples=100, deadline=None)
def test_one_refused_value_anywhere_refuses_the_whole(good: Any, bad: Any, around: list[str]) -> None:
    value: Any = bad
    path = "args"
    for container in reversed(around):
        value = [good, value] if container == "list" else (good, value) if container == "tuple" else {"k": value}
    for container in around:
        path += "['k']" if container == "dict" else "[1]"
    with pytest.raises(ValueRefused) as refused:
        encode(value, "args")
    assert refused.value.path == path
    assert str(refused.value).startswith(path + " ")
    assert "\n" not in str(refused.value)
    assert ": " in str(refused.value)  # what to do instead


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (
            [0, {"model": len}],
            "x[1]['model'] is of type builtin_function_or_method, which does not travel: define the function",
        ),
        ({("a", Colour.RED): 1}, "list(x)[0][1] is of type "),
        ({"s": {Colour.RED}}, "list(x['s'])[0] is of type "),
        (Point(), "x is of type "),
        ([opened()], "x[0] is of type _io.TextIOWrapper, which does not travel: give its path, or what it holds"),
        ({"a\nb": len}, "x['a\\nb'] is of type "),
        (
            collections.OrderedDict(),
            "x is of type collections.OrderedDict, which does not travel: it is a subclass, give dict(x)",
        ),
        (datetime.datetime(2026, 1, 1, tzinfo=Unknown()), "x has a tzinfo of type "),
    ],
)
def test_the_line_leads_to_the_value(value: Any, line: str) -> None:
    with pytest.raises(ValueRefused) as refused:
        encode(value, "x")
    assert str(refused.value).startswith(line)


def test_the_advice_fits_the_type() -> None:
    advised = {
        Point(): "tuple(x)",
        Colour.RED: "x.value",
        Text("a"): "str(x)",
        range(2): "list(x)",
        decimal.Decimal(7): "str(x)",
    }
    for value, advice in advised.items():
        with pytest.raises(ValueRefused, match=advice.replace("(", r"\(").replace(")", r"\)")):
            encode(value)


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = [1]
    loop.append({"again": loop})
    with pytest.raises(ValueRefused, match=r"^x\[1\]\['again'\] contains itself"):
        encode(loop, "x")


@pytest.mark.parametrize("depth", [101, 5000, 100_000])
def test_a_value_that_is_too_deep_is_refused_by_one_line(depth: int) -> None:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    with pytest.raises(ValueRefused, match="nested more than 100 deep") as refused:
        encode(value, "x")
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("wrap", [lambda x: [x], lambda x: (x,), lambda x: {1: x}, lambda x: frozenset([x])])
def test_a_hundred_levels_travel(wrap: Any) -> None:
    value: Any = 1
    for _ in range(100):
        value = wrap(value)
    assert decode(encode(value)) == value


def test_a_short_stack_is_a_refusal_too() -> None:
    value: Any = 1
    for _ in range(90):
        value = [value]

    def deeper(frames: int) -> Any:
        return deeper(frames - 1) if frames else encode(value, "x")

    depth = len(list(iter_frames()))
    with pytest.raises(ValueRefused, match="too deep for what is left of the interpreter's stack"):
        deeper(sys.getrecursionlimit() - depth - 150)


def iter_frames() -> Any:
    frame = sys._getframe()
    while frame is not None:
        yield frame
        frame = frame.f_back


def test_the_same_list_twice_is_no_cycle_and_comes_back_as_two() -> None:
    inner = [1, len and 2]
    came = decode(encode([inner, {"k": inner}]))
    assert came == [inner, {"k": inner}]
    assert came[0] is not came[1]["k"]


def test_dicts_keep_their_order() -> None:
    assert list(decode(encode({"b": 1, "a": 2, 3: 4}))) == ["b", "a", 3]


def test_large_bytes_are_parts_and_are_not_copied() -> None:
    data = b"x" * 10_000
    parts = encode({"a": data, "b": b"small"})
    assert len(parts) == 2
    assert parts[1] is data
    assert decode(parts)["a"] is data


def test_a_bytearray_is_taken_over() -> None:
    part = bytearray(b"x" * 10_000)
    assert decode([encode(part)[0], part]) is part


def test_a_zone_whose_key_does_not_name_it_is_refused() -> None:
    moment = datetime.datetime(2026, 1, 1, tzinfo=zoneinfo.ZoneInfo.no_cache("Europe/Berlin"))
    with pytest.raises(ValueRefused, match="Europe/Berlin"):
        encode(moment)
