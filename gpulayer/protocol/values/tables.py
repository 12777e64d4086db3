"""pyarrow tables and record batches: Arrow IPC streams, as they stand.

https://arrow.apache.org/docs/format/Columnar.html#ipc-streaming-format
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from . import tags
from .decoding import library
from .errors import LibraryMissing, ValueDamaged, ValueRefused
from .fields import fields

if TYPE_CHECKING:
    from .decoding import Buffer, Decoder
    from .encoding import Encoder, Writer

_OLDEST = 15  # before, reading a stream could unpickle what is in it
_EXTENSION = b"ARROW:extension"


def writer(kind: type[Any]) -> Writer | None:
    """The writer of a pyarrow type."""
    pyarrow = library("pyarrow")
    if kind is pyarrow.Table:
        return _write_table
    return _write_batch if kind is pyarrow.RecordBatch else None


def arrow() -> Any:
    """The pyarrow library, which must be new enough to read what is not trusted.

    Raises:
        LibraryMissing: it is not installed, or too old.
    """
    pyarrow = library("pyarrow")
    if int(pyarrow.__version__.partition(".")[0]) < _OLDEST:
        raise LibraryMissing(f"tables need pyarrow {_OLDEST} or newer, here is {pyarrow.__version__}: install it")
    return pyarrow


def _write_table(encoder: Encoder, value: Any) -> Any:
    encoder.refuse_as_key(value)
    return {tags.TABLE: [value.num_rows, write_stream(encoder, value)]}


def _write_batch(encoder: Encoder, value: Any) -> Any:
    encoder.refuse_as_key(value)
    return {tags.BATCH: [value.num_rows, write_stream(encoder, value)]}


def write_stream(encoder: Encoder, table: Any) -> Any:
    """A table's or batch's buffer.

    Raises:
        ValueRefused: it has an extension type, or is not valid.
    """
    try:
        pyarrow = arrow()
    except LibraryMissing as missing:
        raise ValueRefused(f"cannot be sent: {missing}") from missing
    for field in table.schema:
        try:
            refuse_extensions(field.type)
        except ValueRefused as refused:
            raise refused.below("", f"[{field.name!r}]") from None
    try:
        table.validate(full=True)
        measure = pyarrow.MockOutputStream()
        _write(pyarrow, measure, table)
        memory = pyarrow.allocate_buffer(measure.size())
        _write(pyarrow, pyarrow.FixedSizeBufferWriter(memory), table)
    except pyarrow.ArrowException as error:
        raise ValueRefused(f"is a table that Arrow does not write ({_first_line(error)}): make it anew") from error
    if _EXTENSION in bytes(_schema_of(memory)):
        raise ValueRefused("has a column or metadata that names an Arrow extension: give it without")
    return encoder.buffer(memoryview(memory).toreadonly())


def _write(pyarrow: Any, sink: Any, table: Any) -> None:
    with pyarrow.ipc.new_stream(sink, table.schema) as stream:
        stream.write(table)


def refuse_extensions(kind: Any) -> None:
    """Raise `ValueRefused` for an Arrow type that is, or holds, an extension type."""
    if _EXTENSION in bytes(arrow().schema([("x", kind)]).serialize()):  # wherever it stands, its name stands there
        raise ValueRefused(f"has the extension type {kind}, which does not travel: give its storage")


def read_stream(decoder: Decoder, field: Any, rows: int) -> Any:
    """The table of a buffer, wholly validated: nothing in it points outside of it.

    Raises:
        ValueDamaged: it is no such stream, or has an extension type, or another number of rows.
    """
    pyarrow = arrow()
    data = decoder.buffer(field)
    if _EXTENSION in bytes(_schema_of(data)):  # before it is opened: opening calls what is registered for extensions
        raise ValueDamaged("a table with an extension type")
    memory = pyarrow.py_buffer(data)
    if memory.address % 8:
        memory = pyarrow.py_buffer(bytes(data))
    with pyarrow.ipc.open_stream(memory) as stream:
        table = stream.read_all()
    table.validate(full=True)
    if table.num_rows != rows:
        raise ValueDamaged(f"a table of {table.num_rows} rows where {rows} belong")
    return table


def _schema_of(data: Buffer) -> memoryview:
    """The stream's first message, which holds the schema, its metadata and nothing else."""
    view = memoryview(data)
    if view.nbytes < 8:
        raise ValueDamaged("a table that ends too early")
    mark, size = struct.unpack("<Ii", view[:8])
    if mark != 0xFFFFFFFF or not 0 < size <= view.nbytes - 8:
        raise ValueDamaged("a table that is no Arrow IPC stream")
    return view[8 : 8 + size]


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:120]


def _read_table(decoder: Decoder, field: Any) -> Any:
    rows, buffer = fields(field, int, None)
    return read_stream(decoder, buffer, rows)


def _read_batch(decoder: Decoder, field: Any) -> Any:
    table = _read_table(decoder, field)
    batches = table.to_batches()
    if len(batches) != 1 and table.num_rows:
        raise ValueDamaged("a record batch in more than one piece")
    if batches:
        return batches[0]
    pyarrow = arrow()
    return pyarrow.RecordBatch.from_arrays([pyarrow.array([], item.type) for item in table.schema], schema=table.schema)


READERS = {tags.TABLE: _read_table, tags.BATCH: _read_batch}
