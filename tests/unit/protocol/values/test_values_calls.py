"""Values and arguments of calls in one piece of bytes, and what of them becomes blobs."""

from __future__ import annotations

import hashlib
import json
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpulayer.protocol.values
from gpulayer.protocol.values import ValueDamaged, ValueRefused, calls, flat, plainpack
from gpulayer.protocol.values.calls import Ref
from tests.unit.protocol.values.equality import assert_same
from tests.unit.protocol.values.test_values_builtin import VALUES

ATOMS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40) | st.binary(max_size=40)
ANY = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=3)
    ),
    max_leaves=12,
)
NAMED = st.dictionaries(st.text(max_size=5), ANY, max_size=2)


class Store:
    """Takes blobs, and gives them back."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}

    def put(self, data: memoryview) -> str:
        digest = hashlib.sha256(data).hexdigest()
        self.blobs[digest] = bytes(data)
        return digest

    def get(self, digest: str, size: int) -> bytearray:
        assert len(self.blobs[digest]) == size
        return bytearray(self.blobs[digest])


@pytest.fixture(params=["library", "plain"])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a msgpack library, and without."""
    if request.param == "plain":
        monkeypatch.setattr(flat.msgpack, "pack", plainpack.pack)
        monkeypatch.setattr(flat.msgpack, "unpack", flat.plain_unpack)


@given(VALUES)
@settings(max_examples=100, deadline=None)
def test_whatever_the_codec_takes_comes_back_the_same(value: Any) -> None:
    assert_same(calls.unpack(calls.pack(value)), value)
    args, kwargs = calls.unpack_call(calls.pack_call((value, 1), {"name": value})[0])
    assert_same(args, (value, 1))
    assert_same(kwargs, {"name": value})


def test_the_library_and_what_stands_in_for_it_read_each_other(both_ways: None) -> None:
    value = [None, True, -5, 2**40, -0.0, "ä" * 40, b"b", {"a": [1, {"b": "c"}]}, *range(20)]
    assert_same(calls.unpack(calls.pack(value)), value)
    packed: Any = msgpack.packb(value)
    assert_same(calls.unpack(bytes((calls.PLAIN,)) + packed), value)
    assert_same(msgpack.unpackb(calls.pack(value)[1:]), value)


@given(ANY)
@settings(max_examples=100, deadline=None)
def test_any_value_comes_back_the_same(value: Any) -> None:
    assert_same(calls.unpack(calls.pack(value)), value)


@given(st.lists(ANY, max_size=4), NAMED)
@settings(max_examples=100, deadline=None)
def test_any_arguments_come_back_the_same(args: list[Any], kwargs: dict[str, Any]) -> None:
    packed, digests = calls.pack_call(tuple(args), kwargs)
    assert digests == ()
    came = calls.unpack_call(packed)
    assert_same(came[0], tuple(args))
    assert_same(came[1], kwargs)


@given(st.lists(st.integers(0, 300) | st.floats() | st.text(max_size=40) | st.none(), max_size=17))
@settings(max_examples=100, deadline=None)
def test_lists_are_read_the_same_without_the_library(value: list[Any]) -> None:
    data = calls.pack(value)
    assert_same(flat.plain_unpack(data[1:]), value)
    for end in range(1, len(data)):
        with pytest.raises(ValueDamaged):
            flat.plain_unpack(data[1:end])


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (None, calls.PLAIN),
        ([1, {"a": [2.5, b"c"]}], calls.PLAIN),
        ((1, "a"), calls.TUPLE),
        ((1, (2,)), calls.PARTS),
        ([2**64], calls.PARTS),
        ("\ud800", calls.PARTS),
        ({1: 2}, calls.PARTS),
        ([[[[[[1]]]]]], calls.PARTS),
        ([[0] * 100] * 100, calls.PARTS),
        (True, calls.PLAIN),
    ],
)
def test_small_plain_values_take_the_short_forms(value: Any, form: int) -> None:
    data = calls.pack(value)
    assert data[0] == form
    assert_same(calls.unpack(data), value)


def test_large_parts_become_blobs_and_small_ones_stay() -> None:
    store = Store()
    large, small = numpy.arange(10_000.0), numpy.arange(100.0)
    data = calls.pack({"large": large, "small": small, "same": large}, blob=store.put)
    assert len(data) < 2000
    assert [len(blob) for blob in store.blobs.values()] == [80_000]
    value = calls.unpack(data, blob=store.get)
    assert_same(value, {"large": large, "small": small, "same": large})
    value["large"][0] = 1
    packed, digests = calls.pack_call((large,), {"x": "t" * 70_000}, blob=store.put)
    assert set(digests) <= set(store.blobs)
    assert len(digests) == 2
    args, kwargs = calls.unpack_call(packed, blob=store.get)
    assert_same(args[0], large)
    assert_same(kwargs, {"x": "t" * 70_000})


def test_many_small_parts_are_one_blob() -> None:
    store = Store()
    value = [numpy.full(5000, i, "u1") for i in range(100)]
    data = calls.pack(value, blob=store.put)
    assert (data[0], len(store.blobs)) == (calls.WHOLE, 1)
    assert_same(calls.unpack(data, blob=store.get), value)
    packed, digests = calls.pack_call((value,), {}, blob=store.put)
    assert len(digests) == 1
    assert_same(calls.unpack_call(packed, blob=store.get), ((value,), {}))


def test_parts_in_one_piece_are_where_an_array_can_use_them() -> None:
    value = {"a": numpy.arange(1000.0), "b": b"x" * 5001, "c": numpy.arange(2000, dtype="i4")}
    data = bytearray(calls.pack(value))
    came = calls.unpack(data)
    assert_same(came, value)
    base = memoryview(data)
    assert numpy.shares_memory(came["a"], numpy.frombuffer(base, numpy.uint8))
    assert numpy.shares_memory(came["c"], numpy.frombuffer(base, numpy.uint8))
    assert b"".join(bytes(piece) for piece in calls.pack_pieces(value)) == bytes(calls.pack(value))


def test_references_travel_as_their_digest_in_the_place_of_an_argument() -> None:
    store = Store()
    array = numpy.arange(50_000)
    data = calls.pack(array)
    ref = Ref(store.put(memoryview(data)), len(data))
    packed, digests = calls.pack_call((1, ref, ref), {"x": ref, "y": 2}, blob=store.put)
    assert digests == (ref.digest,)
    assert len(packed) < 1000
    args, kwargs = calls.unpack_call(packed, blob=store.get)
    assert_same((args, kwargs), ((1, array, array), {"x": array, "y": 2}))
    args, kwargs = calls.unpack_call(packed, ref=lambda digest, size: (digest, size))
    assert args[1] == kwargs["x"] == (ref.digest, ref.size)
    with pytest.raises(ValueRefused, match=r"^args\[0\]\[0\] .*: pass it as an argument of its own$"):
        calls.pack_call(([ref],), {})


@pytest.mark.parametrize(
    ("args", "kwargs", "path"),
    [
        ((1, {"model": object()}), {}, r"args\[1\]\['model'\]"),
        ((1,), {"x": [object()]}, r"kwargs\['x'\]\[0\]"),
        ((object(), Ref("a", 1)), {}, r"args\[0\]"),
    ],
)
def test_what_does_not_travel_is_named_by_its_path(args: Any, kwargs: Any, path: str) -> None:
    with pytest.raises(ValueRefused, match=f"^{path} is of type object"):
        calls.pack_call(args, kwargs)
    with pytest.raises(ValueRefused, match=r"^result\[0\] is of type object"):
        calls.pack((object(),), name="result")


def test_a_list_that_contains_itself_is_refused_at_once() -> None:
    many: list[Any] = []
    many += [many] * 4000
    with pytest.raises(ValueRefused, match="contains itself"):
        calls.pack(many)


def _damaged() -> Iterator[bytes]:
    store = Store()
    array = numpy.arange(10_000.0)
    good = [
        calls.pack([1, "a"]),
        calls.pack(array),
        calls.pack(array, blob=store.put),
        calls.pack_call((1, (2,)), {"x": array}, blob=store.put)[0],
        calls.pack_call((1, Ref("ab" * 32, 5)), {})[0],
        calls.pack([array[:1000].copy() for _ in range(60)], blob=store.put),
    ]
    for data in good:
        yield from (data[: len(data) * part // 6] for part in range(1, 6))
        yield from (data[:-1], data + b"x")
        yield bytes((9,)) + data[1:]
    length = struct.Struct("<I")
    for form in (calls.PARTS, calls.WHOLE, calls.REFS):
        for header in (b"[", b"{}", b"[-1]", b'["a"]', b'[["a"]]', b'[["a", true]]', b'[[9, "a", 1]]', b"[" * 5000):
            yield bytes((form,)) + length.pack(len(header)) + header
            yield bytes((form,)) + header
    yield b""
    yield b"\x01\xd4\x01\x00"  # a msgpack extension
    yield b"\x02\x80"  # no list


def test_damaged_bytes_are_refused_and_nothing_else_happens(both_ways: None) -> None:
    def fetch(digest: str, size: int) -> bytes:
        return bytes(size)

    count = 0
    for data in _damaged():
        for read in (lambda: calls.unpack(data, blob=fetch), lambda: calls.unpack_call(data, blob=fetch)):  # noqa: B023
            with pytest.raises(ValueDamaged):
                read()
            count += 1
    assert count > 100


def test_a_blob_that_is_not_at_hand_or_of_another_size_is_told() -> None:
    store = Store()
    data = calls.pack(numpy.arange(10_000.0), blob=store.put)
    with pytest.raises(ValueDamaged, match="not at hand"):
        calls.unpack(data)
    with pytest.raises(ValueDamaged, match="has 3 bytes where 80000 belong"):
        calls.unpack(data, blob=lambda digest, size: b"abc")


def test_it_works_by_its_path_in_a_bare_interpreter() -> None:
    script = """
import importlib, importlib.util, json, sys
folder = sys.argv[1]
spec = importlib.util.spec_from_file_location("v", folder + "/__init__.py", submodule_search_locations=[folder])
sys.modules["v"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
calls = importlib.import_module("v.calls")
sys.modules["msgpack"] = None
args, kwargs = calls.unpack_call(bytes.fromhex(sys.stdin.read()))
sys.stdout.write(json.dumps([calls.pack(args).hex(), calls.pack(kwargs).hex(), "gpulayer" in sys.modules]))
"""
    args, kwargs = (1, "ä", [2.5, None, {"a": [1]}]), {"x": True}
    found = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script, str(Path(gpulayer.protocol.values.__file__).parent)],
        input=calls.pack_call(args, kwargs)[0].hex(),
        capture_output=True,
        text=True,
        check=True,
    )
    packed_args, packed_kwargs, imported = json.loads(found.stdout)
    assert not imported
    assert_same(calls.unpack(bytes.fromhex(packed_args)), args)
    assert_same(calls.unpack(bytes.fromhex(packed_kwargs)), kwargs)
