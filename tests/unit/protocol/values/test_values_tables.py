"""pyarrow tables and record batches come back with schema, metadata and every value."""

from __future__ import annotations

import decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulayer.protocol.values import ValueDamaged, ValueRefused, decode, encode
from tests.unit.protocol.values.equality import assert_same

pa: Any = pytest.importorskip("pyarrow")

INTEGERS = {
    name: getattr(pa, name)() for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
}


def columns_of(kind: Any, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Chunked arrays of one type, with nulls, in any number of chunks."""
    chunk = st.lists(st.none() | values, max_size=6).map(lambda items: pa.array(items, kind))
    return st.lists(chunk, max_size=3).map(lambda chunks: pa.chunked_array(chunks, kind))


PLAIN: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (pa.null(), st.none()),
    (pa.bool_(), st.booleans()),
    (pa.float64(), st.floats()),
    (pa.float32(), st.floats(width=32)),
    (pa.string(), st.text()),
    (pa.large_string(), st.text()),
    (pa.binary(), st.binary()),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us", "Europe/Berlin"), st.integers(-(10**15), 10**15)),
    (pa.timestamp("s"), st.integers(-(10**9), 10**9)),
    (pa.duration("ms"), st.integers(-(10**9), 10**9)),
    (pa.time64("us"), st.times()),
    (pa.decimal128(10, 2), st.decimals(-1000, 1000, places=2).map(lambda value: decimal.Decimal(value))),
    (pa.dictionary(pa.int8(), pa.string()), st.sampled_from(["a", "b", "c"])),
    *((kind, st.integers(0, 127)) for kind in INTEGERS.values()),
]
NESTED = [
    *((pa.list_(kind), st.lists(st.none() | values, max_size=3)) for kind, values in PLAIN[:-1]),
    (
        pa.struct([("a", pa.int8()), ("b", pa.list_(pa.string()))]),
        st.fixed_dictionaries({"a": st.integers(0, 9), "b": st.lists(st.text())}),
    ),
    (
        pa.map_(pa.string(), pa.int64()),
        st.dictionaries(st.text(), st.integers(0, 9)).map(lambda item: list(item.items())),
    ),
]


@st.composite
def tables(draw: Any) -> Any:
    """A table of a few columns of any types, names perhaps doubled, metadata perhaps there, perhaps a slice."""
    kinds = draw(st.lists(st.sampled_from(PLAIN + NESTED), max_size=4))
    columns = [draw(columns_of(kind, values)) for kind, values in kinds]
    rows = min((len(column) for column in columns), default=0)
    names = draw(st.lists(st.text(max_size=3), min_size=len(kinds), max_size=len(kinds)))
    metadata = draw(st.none() | st.dictionaries(st.text(max_size=5), st.binary(max_size=5), max_size=2))
    fields = [pa.field(name, kind, metadata=metadata) for name, (kind, _) in zip(names, kinds, strict=True)]
    columns = [column.slice(len(column) - rows) for column in columns]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields, metadata=metadata))


@given(tables())
@settings(max_examples=120, deadline=None)
def test_a_table_comes_back(table: Any) -> None:
    assert_same(decode(encode({"t": table}))["t"], table)
    assert_same(decode([bytearray(part) for part in encode(table)]), table)


@given(tables())
@settings(max_examples=50, deadline=None)
def test_a_record_batch_comes_back(table: Any) -> None:
    for batch in table.to_batches():
        assert_same(decode(encode(batch)), batch)


def test_rows_without_columns_come_back() -> None:
    table = pa.table({"a": [1, 2]}).select([])
    assert decode(encode(table)).num_rows == 2
    batch = pa.record_batch({"a": pa.array([], pa.int8())})
    assert_same(decode(encode(batch)), batch)


def test_a_large_table_is_one_part_and_is_read_where_it_lies() -> None:
    parts = encode(pa.table({"a": list(range(10_000))}))
    assert len(parts) == 2
    received = bytes(parts[1])
    column = decode([parts[0], received]).column(0).chunk(0)
    start = pa.py_buffer(received).address
    assert start <= column.buffers()[1].address < start + len(received)


def uuids() -> Any:
    kind = pa.uuid() if hasattr(pa, "uuid") else pytest.skip("no extension types in this pyarrow")
    return pa.ExtensionArray.from_storage(kind, pa.array([b"x" * 16], pa.binary(16)))


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: pa.array([1]), "x is of type pyarrow.lib.Int64Array, which does not travel: give a pyarrow.Table"),
        (lambda: pa.chunked_array([[1]]), "x is of type pyarrow.lib.ChunkedArray"),
        (lambda: pa.schema([]), "x is of type pyarrow.lib.Schema"),
        (lambda: pa.int8(), "x is of type pyarrow.lib.DataType"),
        (lambda: pa.table({"u": uuids()}), "x['u'] has the extension type"),
        (lambda: pa.table({"s": pa.StructArray.from_arrays([uuids()], names=["u"])}), "x['s'] has the extension type"),
        (lambda: pa.table({"a": [1]}, metadata={"ARROW:extension:name": "x"}), "x has a column or metadata that names"),
        (
            lambda: pa.table(
                {
                    "a": pa.Array.from_buffers(
                        pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")]
                    )
                }
            ),
            "x is a table that Arrow does not write",
        ),
    ],
)
def test_what_cannot_come_back_is_refused(make: Any, line: str) -> None:
    with pytest.raises(ValueRefused) as refused:
        encode(make(), "x")
    assert str(refused.value).startswith(line)
    assert "\n" not in str(refused.value)


def test_offsets_that_point_outside_are_damage() -> None:
    parts = [bytearray(part) for part in encode(pa.table({"a": ["x" * 3000, "y" * 3000]}))]
    place = bytes(parts[1]).rindex((3000).to_bytes(4, "little") + (6000).to_bytes(4, "little"))
    parts[1][place + 4 : place + 8] = (1 << 30).to_bytes(4, "little")
    with pytest.raises(ValueDamaged):
        decode(parts)
