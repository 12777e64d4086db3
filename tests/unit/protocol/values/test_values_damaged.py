"""Parts are not trusted: whatever the bytes, `decode` answers with a value or with `ValueDamaged`."""

from __future__ import annotations

import datetime
import importlib
import sys
import zoneinfo
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulayer.protocol.values import LibraryMissing, ValueDamaged, decode, encode, tags

packb: Any = msgpack.packb
TAGS = sorted(
    value for name, value in vars(tags).items() if name.isupper() and isinstance(value, int) and 0 < value < 60
)
NOISE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=12)
    | st.sampled_from(["<f8", "|O", "<M8[ns]", "struct", "array", "numpy", "zone", "offset"]),
    lambda inner: (
        st.lists(inner, max_size=7) | st.dictionaries(st.sampled_from(TAGS) | st.integers(0, 60), inner, max_size=2)
    ),
    max_leaves=20,
)


def samples() -> list[Any]:
    """A value of each kind that can be made here."""
    values: list[Any] = [
        [
            1,
            2.5,
            None,
            True,
            "text",
            "\ud800",
            b"x",
            b"y" * 5000,
            bytearray(b"z"),
            1 << 100,
            1j,
            {1, 2},
            frozenset([3]),
            (4,),
            {"k": 5},
        ],
        [
            datetime.datetime(2026, 1, 1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")),
            datetime.time(1),
            datetime.timedelta(1),
        ],
    ]
    for name, make in MAKERS.items():
        try:
            values.append(make(importlib.import_module(name)))
        except ImportError:
            continue
    return values


def of_numpy(numpy: Any) -> Any:
    fields = numpy.zeros(3, [("a", "<i4"), ("b", "<U3", (2,))])
    return [
        numpy.arange(1000.0),
        numpy.asfortranarray(numpy.ones((3, 4))),
        fields,
        fields[0],
        numpy.str_("x"),
        numpy.zeros(2, "M8[s]"),
    ]


def of_pandas(pandas: Any) -> Any:
    importlib.import_module("pyarrow")
    frame = pandas.DataFrame(
        {"a": [1, 2], "b": ["x", None], "c": pandas.Categorical(["u", "v"]), "d": pandas.array([1, None])}
    )
    frame["e"] = pandas.to_datetime(["2026-01-01", None]).tz_localize("Europe/Berlin")
    return [frame, frame.set_index(["a", "b"]), frame["b"]]


def of_pyarrow(pyarrow: Any) -> Any:
    table = pyarrow.table({"a": [1, None], "b": ["x", "y"], "c": [[1], [2, 3]]})
    return [table, table.to_batches()[0]]


def of_torch(torch: Any) -> Any:
    return [torch.arange(5.0), torch.ones(2, 1100, dtype=torch.bfloat16)]


MAKERS = {"numpy": of_numpy, "pandas": of_pandas, "pyarrow": of_pyarrow, "torch": of_torch}
SAMPLES = [[bytes(part) for part in encode(value)] for value in samples()]


def never_another_error(parts: list[Any]) -> None:
    said = "a value"
    try:
        decode(parts)
    except ValueDamaged as damaged:
        said = str(damaged)
    assert said
    assert "\n" not in said


@given(st.lists(st.binary(max_size=200), max_size=4))
@settings(max_examples=150, deadline=None)
def test_random_bytes(parts: list[bytes]) -> None:
    never_another_error(parts)


@given(NOISE, st.lists(st.binary(max_size=64), max_size=3))
@settings(max_examples=250, deadline=None)
def test_heads_of_the_right_shape_with_wrong_contents(tree: Any, parts: list[bytes]) -> None:
    never_another_error([packb([tags.VERSION, list(map(len, parts)), tree], unicode_errors="surrogatepass"), *parts])


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_parts_with_a_few_bytes_changed(data: Any) -> None:
    parts = [bytearray(part) for part in data.draw(st.sampled_from(SAMPLES))]
    for _ in range(data.draw(st.integers(1, 4))):
        part = data.draw(st.sampled_from([part for part in parts if part]))
        part[data.draw(st.integers(0, len(part) - 1))] = data.draw(st.integers(0, 255))
    never_another_error(parts)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_parts_cut_short_left_out_or_doubled(data: Any) -> None:
    parts = list(data.draw(st.sampled_from(SAMPLES)))
    place = data.draw(st.integers(0, len(parts) - 1))
    damage = data.draw(st.sampled_from(["cut", "drop", "double"]))
    if damage == "cut":
        parts[place] = parts[place][: data.draw(st.integers(0, max(0, len(parts[place]) - 1)))]
    elif damage == "drop":
        del parts[place]
    else:
        parts.insert(place, parts[place])
    with pytest.raises(ValueDamaged):
        decode(parts)


def packed(tree: Any, *parts: bytes, version: int = tags.VERSION) -> list[bytes]:
    return [packb([version, list(map(len, parts)), tree]), *parts]


@pytest.mark.parametrize(
    ("parts", "line"),
    [
        ([], "at least one part"),
        (packed(1, version=9), "update gpulayer"),
        (packed(1, b"more"), "nothing in the head mentions"),
        (packed({tags.BYTES: 1}), "mentions part 1 of 1"),
        (packed([{tags.BYTES: 1}, {tags.BYTES: 1}], b"x"), "mentions part 1 twice"),
        (packed({tags.SET: [1, 1]}), "an element twice"),
        (packed({tags.DICT: [[1, 1], [2, 3]]}), "a key twice"),
        (packed({tags.DICT: [[1], []]}), "more keys than values"),
        (packed({tags.DICT: [[[1]], [2]]}), "unhashable"),
        (packed({99: 1}), "unknown kind 99"),
        (packed({1: b"", 2: b""}), "no tag"),
        (packed(msgpack.Timestamp(1)), "timestamp"),
        (packed([msgpack.ExtType(5, b"")]), "extension"),
        ([packb([1, [], 2]) + b"\xc0"], "extra data"),
        ([b"\x93\x01\x90" + b"\x91" * 5000 + b"\xc0"], "no value can be made"),
        ([packb([1, [3], {tags.BYTES: 1}]), b"xx"], "other sizes"),
        (packed({tags.DATETIME: [2026, 13, 1, 0, 0, 0, 0, 0, None]}), "month"),
        (packed({tags.DATETIME: [2026, 1, 1, 0, 0, 0, 0, 0, ["zone", "../../etc/passwd"]]}), "is not known here"),
        (packed({tags.TIMEDELTA: [True, 0, 0]}), "a bool where a int belongs"),
    ],
)
def test_what_is_wrong_is_said(parts: list[bytes], line: str) -> None:
    with pytest.raises(ValueDamaged, match=line):
        decode(parts)


@pytest.mark.parametrize(
    "dtype", ["|O", "|O8", "O", "object", "f16", "<f16", "<c32", "|b2", "<i3", "i4,i4", "|V99999999999"]
)
def test_dtypes_that_are_not_plain_are_damage(dtype: str) -> None:
    pytest.importorskip("numpy")
    with pytest.raises(ValueDamaged):
        decode(packed({tags.NDARRAY: [dtype, [1], False, True, bytes(16)]}))


@pytest.mark.parametrize(
    ("shape", "size"), [([2], 8), ([2], 24), ([-2], 16), ([-1, -2], 16), ([2.0], 16), ([1 << 62, 8], 0), ([1] * 65, 8)]
)
def test_shapes_must_fit_their_bytes(shape: list[Any], size: int) -> None:
    pytest.importorskip("numpy")
    with pytest.raises(ValueDamaged):
        decode(packed({tags.NDARRAY: ["<f8", shape, False, True, bytes(size)]}))


def test_a_table_with_an_extension_type_is_never_opened() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    read: list[bytes] = []

    class Trap(pyarrow.ExtensionType):
        def __init__(self) -> None:
            super().__init__(pyarrow.int8(), "gpulayer.test.trap")

        def __arrow_ext_serialize__(self) -> bytes:
            return b"payload"

        @classmethod
        def __arrow_ext_deserialize__(cls, _storage: Any, serialized: bytes) -> Any:
            read.append(serialized)
            return cls()

    pyarrow.register_extension_type(Trap())
    try:
        column = pyarrow.ExtensionArray.from_storage(Trap(), pyarrow.array([1], pyarrow.int8()))
        sink = pyarrow.BufferOutputStream()
        table = pyarrow.table({"a": column})
        with pyarrow.ipc.new_stream(sink, table.schema) as stream:
            stream.write(table)
        read.clear()
        with pytest.raises(ValueDamaged, match="extension"):
            decode(packed({tags.TABLE: [1, sink.getvalue().to_pybytes()]}))
        assert read == []
    finally:
        pyarrow.unregister_extension_type("gpulayer.test.trap")


def test_a_library_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(LibraryMissing, match="install torch"):
        decode(packed({tags.TENSOR: ["float32", [1], bytes(4)]}))
