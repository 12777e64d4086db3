"""The columns of a frame, as Arrow arrays and back.

A column's kind is a list: `["numpy", dtype]`, `["zoned", unit, zone]`, `["text", storage, "nan" or "NA"]`,
`["masked", dtype's name]`, `["categories", index, ordered?]`, `["objects", "none" or "nan"]` (dtype object with nothing
but str and one kind of missing value), `["arrow"]`.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, Any

from .decoding import library
from .errors import ValueDamaged, ValueRefused, type_name
from .fields import exactly, fields
from .moments import read_zone, zone_tree
from .tables import arrow, refuse_extensions

if TYPE_CHECKING:
    from .encoding import Encoder

_NUMPY = re.compile(r"(?:\|b1|[<|][iu][1248]|<f[248]|<[mM]8\[(?:s|ms|us|ns)\])")
_MASKED = frozenset(f"{sign}Int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)) | {
    "Float32",
    "Float64",
    "boolean",
}
_STORAGES = ("python", "pyarrow")
_NAN = struct.pack("<d", float("nan"))


def write_column(encoder: Encoder, array: Any) -> tuple[list[Any], Any]:
    """A column's kind and its Arrow array.

    Args:
        encoder: of the value that the column stands in.
        array: a NumPy array or a pandas extension array of one dimension.

    Raises:
        ValueRefused: Arrow cannot carry it exactly.
    """
    pandas, numpy = library("pandas"), library("numpy")
    dtype = array.dtype
    if isinstance(dtype, numpy.dtype):
        return _write_objects(array) if dtype.kind == "O" else _write_numpy(array)
    if type(dtype) is pandas.StringDtype:
        return _write_text(array)
    if type(dtype) is pandas.CategoricalDtype:
        categories = encoder.below(dtype.categories, "", ".cat.categories")
        return ["categories", categories, bool(dtype.ordered)], _from_numpy(numpy.asarray(array.codes))
    if type(dtype) is pandas.DatetimeTZDtype:
        moments = numpy.asarray(array, dtype=f"M8[{dtype.unit}]")  # in UTC
        return ["zoned", dtype.unit, zone_tree(dtype.tz)], _from_numpy(moments)
    if type(dtype) is getattr(pandas, "ArrowDtype", None):
        refuse_extensions(dtype.pyarrow_dtype)
        return ["arrow"], arrow().array(array)
    if dtype.name in _MASKED and type(dtype) is type(pandas.api.types.pandas_dtype(dtype.name)):
        return ["masked", dtype.name], arrow().array(array)
    raise _refused(dtype, "give x.astype() of a NumPy dtype")


def _refused(dtype: Any, advice: str) -> ValueRefused:
    return ValueRefused(f"has the dtype {' '.join(str(dtype).split())[:80]}, which does not travel: {advice}")


def _from_numpy(array: Any) -> Any:
    return arrow().array(library("numpy").ascontiguousarray(array))


def _write_numpy(array: Any) -> tuple[list[Any], Any]:
    if not _NUMPY.fullmatch(array.dtype.str):
        raise _refused(array.dtype, "give x.astype() of a dtype that Arrow has, such as float64")
    return ["numpy", array.dtype.str], _from_numpy(array)


def _write_text(array: Any) -> tuple[list[Any], Any]:
    storage, missing = array.dtype.storage, array.dtype.na_value
    if storage not in _STORAGES:
        raise _refused(array.dtype, "give x.astype('str') or 'string'")
    return ["text", storage, "NA" if missing is library("pandas").NA else "nan"], _arrow_text(array)


def _write_objects(array: Any) -> tuple[list[Any], Any]:
    kinds = set(map(type, array))
    if kinds <= {str, type(None)}:
        return ["objects", "none"], _arrow_text(array)
    if kinds == {str, float} or kinds == {float}:
        missing = [item for item in array if type(item) is float]
        if all(struct.pack("<d", item) == _NAN for item in missing):
            texts = library("numpy").array([None if type(item) is float else item for item in array], dtype=object)
            return ["objects", "nan"], _arrow_text(texts)
    names = ", ".join(sorted(map(type_name, kinds - {str})))[:80] or "str"
    advice = "give x.astype() of one dtype, or x.tolist()"
    raise ValueRefused(f"has the dtype object with values of type {names}, which does not travel: {advice}")


def _arrow_text(array: Any) -> Any:
    pyarrow = arrow()
    try:
        texts = pyarrow.array(array, from_pandas=True)
        if isinstance(texts, pyarrow.ChunkedArray):
            texts = texts.combine_chunks()
        return texts.cast(pyarrow.large_string())
    except UnicodeEncodeError:
        raise ValueRefused("holds text with lone surrogates, which Arrow does not carry: give x.tolist()") from None


# ------------------------------------------------------------------------------------------------------------- reading


def read_column(kind: Any, column: Any) -> Any:
    """The array of a kind and an Arrow ChunkedArray: NumPy's or pandas', in memory of its own.

    Raises:
        ValueDamaged: they do not fit each other. Other errors come from the libraries.
    """
    pandas = library("pandas")
    name = exactly(exactly(kind, list)[0], str)
    if name == "numpy":
        return _to_numpy(column, fields(kind, str, str)[1])
    if name == "objects":
        return _to_objects(column, fields(kind, str, str)[1])
    if name == "text":
        return _text_dtype(*fields(kind, str, str, str)[1:]).__from_arrow__(_checked_text(column))
    if name == "masked":
        return _to_masked(column, fields(kind, str, str)[1])
    if name == "zoned":
        _, unit, zone = fields(kind, str, str, None)
        naive = pandas.DatetimeIndex(_to_numpy(column, f"<M8[{unit}]"))
        return naive.tz_localize("UTC").tz_convert(read_zone(zone)).array
    if name == "categories":
        return _to_categories(column, *fields(kind, str, None, bool)[1:])
    fields(kind, str)
    if name != "arrow":
        raise ValueDamaged("an unknown kind of column")
    return pandas.ArrowDtype(column.type).__from_arrow__(column)


def _to_numpy(column: Any, dtype: str) -> Any:
    if not _NUMPY.fullmatch(dtype):
        raise ValueDamaged("an unknown dtype of a column")
    wanted = library("numpy").dtype(dtype)
    if column.type != arrow().from_numpy_dtype(wanted) or (column.null_count and wanted.kind not in "mM"):
        raise ValueDamaged(f"a column of {column.type} where {dtype} belongs")
    return library("numpy").array(column.to_numpy(), dtype=wanted)


def _to_objects(column: Any, missing: str) -> Any:
    numpy = library("numpy")
    if missing not in ("none", "nan"):
        raise ValueDamaged("an unknown kind of missing value")
    made = numpy.empty(len(column), dtype=object)
    made[:] = _checked_text(column).to_pylist()
    if missing == "nan":
        made[[item is None for item in made]] = float("nan")
    return made


def _text_dtype(storage: str, missing: str) -> Any:
    pandas, numpy = library("pandas"), library("numpy")
    if storage not in _STORAGES or missing not in ("nan", "NA"):
        raise ValueDamaged("an unknown dtype of text")
    return pandas.StringDtype(storage) if missing == "NA" else pandas.StringDtype(storage, na_value=numpy.nan)


def _checked_text(column: Any) -> Any:
    if column.type != arrow().large_string():
        raise ValueDamaged(f"a column of {column.type} where text belongs")
    return column


def _to_masked(column: Any, name: str) -> Any:
    if name not in _MASKED:
        raise ValueDamaged("an unknown dtype of a column")
    dtype = library("pandas").api.types.pandas_dtype(name)
    plain = arrow().from_numpy_dtype(dtype.numpy_dtype)
    if column.type != plain:
        raise ValueDamaged(f"a column of {column.type} where {name} belongs")
    return dtype.__from_arrow__(column)


def _to_categories(column: Any, categories: Any, ordered: bool) -> Any:
    pandas = library("pandas")
    if column.type not in [arrow().int8(), arrow().int16(), arrow().int32(), arrow().int64()]:
        raise ValueDamaged(f"a column of {column.type} where codes of categories belong")
    codes = _to_numpy(column, library("numpy").dtype(column.type.to_pandas_dtype()).str)
    if not isinstance(categories, pandas.Index):
        raise ValueDamaged("categories that are no index")
    return pandas.Categorical.from_codes(codes, dtype=pandas.CategoricalDtype(categories, ordered))
