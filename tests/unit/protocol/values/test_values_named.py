"""Named values in one piece: what `--in` and `--out` carry."""

from __future__ import annotations

import io
import json
import struct
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulayer.protocol.values import LibraryMissing, ValueDamaged, ValueRefused
from gpulayer.protocol.values.named import MAGIC, Framed, nearest, read, values_of

from .equality import assert_same

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(max_size=9000),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


class Slow(io.RawIOBase):
    """A file that gives a few bytes at a time."""

    def __init__(self, data: bytes, step: int) -> None:
        super().__init__()
        self._data, self._step, self.at = data, step, 0

    def readinto(self, target: Any) -> int:
        piece = self._data[self.at : self.at + min(len(target), self._step)]
        target[: len(piece)] = piece
        self.at += len(piece)
        return len(piece)


def written(values: dict[str, Any]) -> bytes:
    framed = Framed(values)
    data = b"".join(framed.pieces())
    assert len(data) == framed.size_bytes
    return data


def again(data: bytes) -> dict[str, Any]:
    return values_of(read(Slow(data, 1 << 20), len(data)))


@given(st.dictionaries(st.text(min_size=1), VALUES, max_size=4), st.integers(1, 5000))
@settings(deadline=None)
def test_every_value_comes_back_under_its_name(values: dict[str, Any], step: int) -> None:
    data = written(values)
    source = Slow(data + b"what follows", step)
    assert_same(values_of(read(source, len(data))), values)
    assert source.at == len(data)


def test_large_arrays_are_not_copied_on_their_way_out_and_writable_on_their_way_in() -> None:
    array = numpy.arange(300_000.0)
    pieces = list(Framed({"a": array, "b": [array]}).pieces())
    assert (
        sum(numpy.shares_memory(numpy.frombuffer(piece, "u1"), array) for piece in pieces) >= 2 * array.nbytes / 2**18
    )
    came = again(b"".join(pieces))
    assert_same(came["b"], [array])
    came["a"][0] = 7.0
    assert came["b"][0][0] == 0.0


def test_the_digest_is_of_the_bytes_and_of_nothing_else() -> None:
    import hashlib

    values = {"a": numpy.ones(5000), "b": "x"}
    assert Framed(values).digest() == hashlib.sha256(written(values)).hexdigest()
    assert Framed(values).digest() == Framed({"a": numpy.ones(5000), "b": "x"}).digest()
    assert Framed(values).digest() != Framed({"b": "x", "a": numpy.ones(5000)}).digest()


def test_a_refusal_begins_with_the_name() -> None:
    with pytest.raises(ValueRefused, match=r"^b\['model'\] is of type object, which does not travel: "):
        Framed({"a": 1, "b": {"model": object()}})


def test_what_lacks_a_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    data = written({"a": numpy.ones(3)})

    def missing(name: str) -> Any:
        raise LibraryMissing(f"the value needs {name}")

    monkeypatch.setattr("gpulayer.protocol.values.arrays.library", missing)
    with pytest.raises(LibraryMissing, match=r"^a: the value needs numpy"):
        again(data)


def index(*entries: Any) -> bytes:
    head = json.dumps(entries).encode()
    return MAGIC + struct.pack("<I", len(head)) + head


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"", "the bytes end 8 too early"),
        (b"GPLVALS\x02" + bytes(20), "another version"),
        (b"something else", "no values"),
        (MAGIC + b"\xff\xff\xff\xff", "an index of 4294967295 bytes"),
        (MAGIC + b"\x02\0\0\0{}", None),
        (MAGIC + b"\x02\0\0\0}{", "the index can't be read"),
        (MAGIC + b"\x01\0\0\0\xff", "the index can't be read"),
        (index(["a", [1 << 60]]), "where the index says"),
        (index(["a", [True]]), "the index can't be read"),
        (index(["a", [-1, 1]]), "the index can't be read"),
        (index([1, []]), "the index can't be read"),
        (index(7), "the index can't be read"),
        (index(["a", [0]], ["a", [0]]), "a name that is there twice"),
        (index(["a", []]), "a: a value has at least one part"),
        (index(["a", [1]]) + b"\xc1", "a: no value can be made"),
    ],
)
def test_damaged_bytes_are_told_and_nothing_else_happens(data: bytes, line: str | None) -> None:
    if line is None:
        assert again(data) == {}
        return
    with pytest.raises(ValueDamaged, match=line):
        again(data)


@given(st.data())
@settings(deadline=None)
def test_any_damage_is_told_or_harmless(data: st.DataObject) -> None:
    whole = written({"a": [1, "two"], "b": b"x" * 5000})
    place = data.draw(st.integers(0, len(whole) - 1))
    changed = bytearray(whole)
    changed[place] ^= data.draw(st.integers(1, 255))
    try:
        came = again(bytes(changed))
    except ValueDamaged:
        return
    assert len(came) == 2
    with pytest.raises(ValueDamaged):
        read(Slow(whole[:place], 100), len(whole))


def test_the_nearest_name_is_said() -> None:
    assert nearest("lossess", ["losses", "model", 3]) == "; did you mean losses?"
    assert nearest("q", ["losses"]) == ""
