"""pandas frames, series and their indexes: columns as one Arrow IPC stream, all that Arrow does not know in the head.

Not by `pyarrow.Table.from_pandas`: that guesses back what it has not kept. Here each column says what it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import tags
from .advice import refusal
from .columns import read_column, write_column
from .decoding import library
from .errors import LibraryMissing, ValueDamaged, ValueRefused, type_of
from .fields import as_list, exactly, fields
from .paths import short
from .tables import arrow, read_stream, write_stream

if TYPE_CHECKING:
    from .decoding import Decoder
    from .encoding import Encoder, Writer

_COLUMN_INDEXES = ("Index", "DatetimeIndex", "TimedeltaIndex", "CategoricalIndex")


def writer(kind: type[Any]) -> Writer | None:
    """The writer of a pandas type."""
    pandas = library("pandas")
    if kind is pandas.DataFrame:
        return _write_frame
    if kind is pandas.Series:
        return _write_series
    indexes = {getattr(pandas, name) for name in (*_COLUMN_INDEXES, "RangeIndex", "MultiIndex")}
    return _write_index if kind in indexes else None


def _write_frame(encoder: Encoder, frame: Any) -> Any:
    encoder.refuse_as_key(frame)
    labels = list(frame.columns)
    if not frame.columns.is_unique:
        doubled = short(frame.columns[frame.columns.duplicated()][0])
        raise ValueRefused(f"has more than one column {doubled}: give each a name of its own")
    index = encoder.below(frame.index, "", ".index")
    columns = _labels_tree(encoder, frame.columns, ".columns")
    kinds: list[Any] = []
    arrays: list[Any] = []
    for place, label in enumerate(labels):
        kind, array = _column(encoder, frame.iloc[:, place], f"[{short(label)}]")
        kinds.append(kind)
        arrays.append(array)
    return {tags.FRAME: [index, columns, kinds, _stream(encoder, arrays), *_extras(encoder, frame)]}


def _write_series(encoder: Encoder, series: Any) -> Any:
    encoder.refuse_as_key(series)
    index = encoder.below(series.index, "", ".index")
    name = _name_tree(encoder, series.name)
    kind, array = _column(encoder, series, "")
    return {tags.SERIES: [index, name, kind, _stream(encoder, [array]), *_extras(encoder, series)]}


def _column(encoder: Encoder, column: Any, step: str) -> tuple[list[Any], Any]:
    """The kind and the Arrow array of a series or an index."""
    try:
        arrow()
    except LibraryMissing as missing:
        raise ValueRefused(f"cannot be sent: {missing}") from missing
    numpy = library("numpy")
    try:
        return write_column(encoder, column.to_numpy() if isinstance(column.dtype, numpy.dtype) else column.array)
    except ValueRefused as refused:
        raise (refused.below("", step) if step else refused) from refused.__cause__


def _stream(encoder: Encoder, arrays: list[Any]) -> Any:
    if not arrays:
        return None  # the number of rows is the index's
    return write_stream(encoder, arrow().table(arrays, names=[str(place) for place in range(len(arrays))]))


def _extras(encoder: Encoder, holder: Any) -> list[Any]:
    attrs = encoder.below(dict(holder.attrs), "", ".attrs") if holder.attrs else None
    return [attrs, bool(holder.flags.allows_duplicate_labels)]


# ------------------------------------------------------------------------------------------------------------- indexes


def _write_index(encoder: Encoder, index: Any) -> Any:
    return _index_tree(encoder, index, labels=False)


def _labels_tree(encoder: Encoder, index: Any, step: str) -> Any:
    try:
        return _index_tree(encoder, index, labels=True)
    except ValueRefused as refused:
        raise refused.below("", step) from refused.__cause__


def _index_tree(encoder: Encoder, index: Any, *, labels: bool) -> Any:
    """An index's tree; with `labels` one of dtype object may hold whatever can be a key."""
    pandas = library("pandas")
    encoder.refuse_as_key(index)
    family = type_of(index)
    if writer(family) is not _write_index:
        raise refusal(index)
    if family is pandas.RangeIndex:
        return {tags.INDEX: ["range", index.start, index.stop, index.step, _name_tree(encoder, index.name)]}
    if family is pandas.MultiIndex:
        return _multi_tree(encoder, index, labels=labels)
    if getattr(index, "freq", None) is not None:
        advice = "set its .freq to None, or give x.reset_index()"
        raise ValueRefused(f"has the frequency {index.freqstr}, which does not travel: {advice}")
    if labels and index.dtype == object:
        return {tags.INDEX: ["labels", encoder.hashed(list(index)), _name_tree(encoder, index.name)]}
    kind, array = _column(encoder, index, "")
    stream = _stream(encoder, [array])
    return {tags.INDEX: ["column", kind, len(index), stream, _name_tree(encoder, index.name)]}


def _multi_tree(encoder: Encoder, index: Any, *, labels: bool) -> Any:
    numpy = library("numpy")
    levels: list[Any] = []
    for place, level in enumerate(index.levels):
        try:
            levels.append(_index_tree(encoder, level, labels=labels))
        except ValueRefused as refused:
            raise refused.below("", f".levels[{place}]") from refused.__cause__
    codes = [encoder.tree(numpy.asarray(codes)) for codes in index.codes]
    return {tags.INDEX: ["multi", levels, codes, encoder.hashed(list(index.names))]}


def _name_tree(encoder: Encoder, name: Any) -> Any:
    try:
        return encoder.key(name)
    except ValueRefused as refused:
        raise refused.below("", ".name") from refused.__cause__


# ------------------------------------------------------------------------------------------------------------- reading


def _read_frame(decoder: Decoder, field: Any) -> Any:
    pandas = library("pandas")
    index, columns, kinds, buffer, attrs, doubled = fields(field, None, None, list, None, None, bool)
    index, columns = _an_index(index), _an_index(columns)
    if len(kinds) != len(columns):
        raise ValueDamaged(f"{len(kinds)} columns with {len(columns)} labels")
    arrays = _arrays(decoder, kinds, buffer, len(index))
    # as series: pandas would guess the dtype of bare arrays of objects anew
    series = {place: pandas.Series(array, dtype=array.dtype, copy=False) for place, array in enumerate(arrays)}
    frame = pandas.DataFrame(series, index=pandas.RangeIndex(len(index)), copy=False)
    frame.index, frame.columns = index, columns
    return _with_extras(frame, attrs, doubled)


def _read_series(decoder: Decoder, field: Any) -> Any:
    index, name, kind, buffer, attrs, doubled = fields(field, None, None, None, None, None, bool)
    (array,) = _arrays(decoder, [kind], buffer, len(_an_index(index)))
    hash(name)
    series = library("pandas").Series(array, index=index, dtype=array.dtype, name=name, copy=False)
    return _with_extras(series, attrs, doubled)


def _with_extras(holder: Any, attrs: Any, doubled: bool) -> Any:
    if attrs is not None:
        holder.attrs = exactly(attrs, dict)
    return holder if doubled else holder.set_flags(allows_duplicate_labels=False)


def _arrays(decoder: Decoder, kinds: list[Any], buffer: Any, rows: int) -> list[Any]:
    if not kinds:
        exactly(buffer, type(None))
        return []
    table = read_stream(decoder, buffer, rows)
    if table.num_columns != len(kinds):
        raise ValueDamaged(f"{table.num_columns} columns of {len(kinds)} kinds")
    return [read_column(kind, table.column(place)) for place, kind in enumerate(kinds)]


def _an_index(value: Any) -> Any:
    if not isinstance(value, library("pandas").Index):
        raise ValueDamaged(f"a {type(value).__name__} where an index belongs")
    return value


def _read_index(decoder: Decoder, field: Any) -> Any:
    pandas = library("pandas")
    kind = exactly(as_list(field)[0], str)
    if kind == "range":
        _, start, stop, step, name = fields(field, str, int, int, int, None)
        return pandas.RangeIndex(start, stop, step, name=name)
    if kind == "multi":
        _, levels, codes, names = fields(field, str, list, list, list)
        return pandas.MultiIndex([_an_index(level) for level in levels], _codes(codes), names=names)
    if kind == "labels":
        _, labels, name = fields(field, str, list, None)
        array = library("numpy").empty(len(labels), dtype=object)
        array[:] = labels
        return pandas.Index(array, dtype=object, name=name, tupleize_cols=False)
    _, column, rows, buffer, name = fields(field, str, None, int, None, None)
    if kind != "column":
        raise ValueDamaged("an unknown kind of index")
    (array,) = _arrays(decoder, [column], buffer, rows)
    return pandas.Index(array, dtype=array.dtype, name=name)


def _codes(codes: list[Any]) -> list[Any]:
    numpy = library("numpy")
    if any(type(item) is not numpy.ndarray or item.ndim != 1 or item.dtype.kind != "i" for item in codes):
        raise ValueDamaged("codes of an index that are no numbers")
    return codes


READERS = {tags.FRAME: _read_frame, tags.SERIES: _read_series, tags.INDEX: _read_index}
