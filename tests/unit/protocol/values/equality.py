"""What 'comes back equal and of the same type' means, per type; stricter than `==`."""

from __future__ import annotations

import datetime
import struct
import sys
from typing import Any


def assert_same(came: Any, went: Any) -> None:
    """Fail unless `came` equals `went` and has its type: floats by their bits, dicts by their order, sets as sets."""
    assert type(came) is type(went)
    family = type(went).__module__.partition(".")[0]
    if type(went) in (float, complex):
        assert bits(came) == bits(went)
    elif type(went) in (list, tuple):
        assert len(came) == len(went)
        for one, other in zip(came, went, strict=True):
            assert_same(one, other)
    elif type(went) is dict:
        assert_same(list(came), list(went))
        assert_same(list(came.values()), list(went.values()))
    elif type(went) in (set, frozenset):
        assert sorted(map(fingerprint, came)) == sorted(map(fingerprint, went))
    elif type(went) in (datetime.datetime, datetime.time):
        assert fingerprint(came) == fingerprint(went)
        assert came == went
    elif family in ("numpy", "pandas", "pyarrow", "torch"):
        {"numpy": same_numpy, "pandas": same_pandas, "pyarrow": same_arrow, "torch": same_tensor}[family](came, went)
    else:
        assert came == went


def bits(number: complex) -> bytes:
    return struct.pack("<dd", number.real, number.imag)


def fingerprint(value: Any) -> str:
    """Equal for the same hashable values only."""
    if type(value) in (tuple, frozenset):
        inner = map(fingerprint, value)
        return f"{type(value).__name__}({', '.join(inner if type(value) is tuple else sorted(inner))})"
    if type(value) in (float, complex):
        return f"{type(value).__name__} {bits(value).hex()}"
    if type(value) in (datetime.datetime, datetime.time):
        zone = value.tzinfo
        names = zone.__getinitargs__() if isinstance(zone, datetime.timezone) else ()  # type: ignore[attr-defined]
        return f"{value!r} {value.fold} {type(zone)} {zone} {names}"
    return f"{type(value).__name__} {value!a}"


def same_numpy(came: Any, went: Any) -> None:
    assert came.dtype == went.dtype
    assert came.dtype.str == went.dtype.str
    assert came.dtype.isalignedstruct == went.dtype.isalignedstruct
    assert came.tobytes() == went.tobytes()
    if type(went) is sys.modules["numpy"].ndarray:
        assert came.shape == went.shape
        assert came.flags.writeable == went.flags.writeable
        assert came.flags.c_contiguous or came.flags.f_contiguous
        if went.nbytes and (went.flags.c_contiguous or went.flags.f_contiguous):
            assert came.flags.f_contiguous == went.flags.f_contiguous
            assert came.flags.c_contiguous == went.flags.c_contiguous


def same_pandas(came: Any, went: Any) -> None:
    pandas = sys.modules["pandas"]
    if isinstance(went, pandas.DataFrame):
        same_pandas(came.index, went.index)
        same_pandas(came.columns, went.columns)
        for place in range(len(went.columns)):
            same_elements(came.iloc[:, place].array, went.iloc[:, place].array)
        assert_same(came.attrs, went.attrs)
        assert came.flags.allows_duplicate_labels == went.flags.allows_duplicate_labels
    elif isinstance(went, pandas.Series):
        same_pandas(came.index, went.index)
        assert_same(came.name, went.name)
        same_elements(came.array, went.array)
        assert_same(came.attrs, went.attrs)
    elif isinstance(went, pandas.MultiIndex):
        assert_same(list(came.names), list(went.names))
        for one, other in zip(came.levels, went.levels, strict=True):
            same_pandas(one, other)
        for one, other in zip(came.codes, went.codes, strict=True):
            assert list(one) == list(other)
    else:
        assert type(came) is type(went)
        assert_same(came.name, went.name)
        same_elements(came.array, went.array)
        if isinstance(went, pandas.RangeIndex):
            assert (came.start, came.stop, came.step) == (went.start, went.stop, went.step)


def same_elements(came: Any, went: Any) -> None:
    """Two columns: dtype and every value; floats by their bits, missing values as what they are."""
    pandas, numpy = sys.modules["pandas"], sys.modules["numpy"]
    assert type(came) is type(went)
    assert came.dtype == went.dtype
    assert str(came.dtype) == str(went.dtype)
    if isinstance(went.dtype, pandas.CategoricalDtype):
        same_pandas(came.dtype.categories, went.dtype.categories)
        assert came.dtype.ordered == went.dtype.ordered
        assert came.codes.tobytes() == went.codes.tobytes()
    elif isinstance(went.dtype, numpy.dtype) and went.dtype != object:
        assert numpy.asarray(came).tobytes() == numpy.asarray(went).tobytes()
    else:
        for one, other in zip(came, went, strict=True):
            assert type(one) is type(other)
            assert one is other or bits_or_itself(one) == bits_or_itself(other)


def bits_or_itself(value: Any) -> Any:
    return bits(float(value)) if isinstance(value, (float, sys.modules["numpy"].floating)) else value


def same_arrow(came: Any, went: Any) -> None:
    assert came.schema.equals(went.schema, check_metadata=True)
    assert came.num_rows == went.num_rows
    for one, other in zip(came.columns, went.columns, strict=True):
        assert len(one) == len(other)
        if one.null_count or other.null_count:
            assert one.is_null().equals(other.is_null())
        for left, right in zip(one.to_pylist(), other.to_pylist(), strict=True):
            assert_same(left, right)


def same_tensor(came: Any, went: Any) -> None:
    torch = sys.modules["torch"]
    assert came.dtype == went.dtype
    assert came.shape == went.shape
    assert came.is_contiguous()
    assert not came.requires_grad
    if went.numel():
        plain = torch.empty(went.numel(), dtype=went.dtype)
        plain.copy_(went.reshape(-1))
        assert came.reshape(-1).view(torch.uint8).tolist() == plain.view(torch.uint8).tolist()
