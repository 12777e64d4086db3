"""What to do instead, for values that do not travel."""

from __future__ import annotations

import array
import collections
import collections.abc
import enum
import io
import os
import sys
import types
from typing import Any

from .errors import ValueRefused, type_name

_BASES: tuple[type[Any], ...] = (bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset)
_FUNCTIONS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.MethodWrapperType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
)
_VIEWS = (collections.abc.KeysView, collections.abc.ValuesView, collections.abc.ItemsView)
_AS_LIST: tuple[Any, ...] = (range, collections.deque, types.GeneratorType, *_VIEWS)
_AS_TEXT = ("decimal.Decimal", "fractions.Fraction", "uuid.UUID")
_BY_NAME = {
    "torch.nn.parameter.Parameter": "give x.detach().cpu()",
    "gpulayer.protocol.values.calls.Ref": "pass it as an argument of its own",
    "torch.device": "give str(x)",
    "torch.Size": "give tuple(x)",
    "torch.dtype": "give str(x)",
    "numpy.ma.MaskedArray": "give x.filled(...), or x.data and x.mask",
    "numpy.matrix": "give numpy.asarray(x)",
    "numpy.rec.recarray": "give {name: x[name] for name in x.dtype.names}",
    "numpy.recarray": "give {name: x[name] for name in x.dtype.names}",
}
_BY_FAMILY = {
    "cupy": "give x.get()",
    "jax": "give numpy.asarray(x)",
    "jaxlib": "give numpy.asarray(x)",
    "tensorflow": "give x.numpy()",
    "polars": "give x.to_arrow()",
    "pyarrow": "give a pyarrow.Table of it: pyarrow.table({'x': x})",
}


def refusal(value: object, advice: str | None = None) -> ValueRefused:
    """The error for a value whose type does not travel."""
    kind = type(value)
    return ValueRefused(f"is of type {type_name(kind)}, which does not travel: {advice or _advice(value, kind)}")


def _advice(value: Any, kind: type[Any]) -> str:
    for advise in (_of_code, _of_known, _of_subclass, _of_library):
        advice = advise(value, kind)
        if advice is not None:
            return advice
    if hasattr(kind, "__dataclass_fields__"):
        return "give dataclasses.asdict(x)"
    return "give what it holds as numbers, str, lists, dicts or arrays, and build it anew there"


def _of_code(value: Any, kind: type[Any]) -> str | None:
    if isinstance(value, _FUNCTIONS):
        return "define the function in the cell, or in a module that travels with it"
    if isinstance(value, type):
        return "define the class in the cell, or in a module that travels with it"
    if kind is types.ModuleType:
        return "import it there"
    return None


def _of_known(value: Any, kind: type[Any]) -> str | None:
    if isinstance(value, io.IOBase):
        return "give its path, or what it holds: x.read()"
    if isinstance(value, enum.Enum):
        return "give x.value"
    if isinstance(value, os.PathLike) or type_name(kind) in _AS_TEXT:
        return "give str(x)"
    if isinstance(value, _AS_LIST):
        return "give list(x)"
    if isinstance(value, memoryview):
        return "give bytes(x)"
    if isinstance(value, array.array):
        return "give numpy.asarray(x)"
    if isinstance(value, types.MappingProxyType):
        return "give dict(x)"
    return None


def _of_subclass(value: Any, kind: type[Any]) -> str | None:
    if type_name(kind) in _BY_NAME:
        return _BY_NAME[type_name(kind)]
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return "give tuple(x) or x._asdict()"
    for base in _BASES:
        if isinstance(value, base) and kind.__module__ != "numpy":
            return f"it is a subclass, give {base.__name__}(x)"
    return None


def _of_library(value: Any, kind: type[Any]) -> str | None:
    family = str(kind.__module__).partition(".")[0]
    torch, pandas, numpy = (sys.modules.get(name) for name in ("torch", "pandas", "numpy"))
    if numpy is not None and isinstance(value, numpy.dtype):
        return "give x.str"
    if torch is not None and hasattr(torch, "nn") and isinstance(value, torch.nn.Module):
        return "give dict(x.state_dict()) of the module on the CPU"
    if torch is not None and isinstance(value, torch.Tensor):
        return "it is a subclass, give x.detach().cpu().as_subclass(torch.Tensor)"
    if pandas is not None and isinstance(value, (pandas.DataFrame, pandas.Series)):
        return f"it is a subclass, give pandas.{'DataFrame' if isinstance(value, pandas.DataFrame) else 'Series'}(x)"
    if family == "pandas":
        return _of_pandas(value, pandas)
    if family in _BY_FAMILY:
        return _BY_FAMILY[family]
    return "give numpy.asarray(x)" if hasattr(kind, "__array__") else None


def _of_pandas(value: Any, pandas: Any) -> str | None:
    if pandas is None:
        return None
    if value is pandas.NaT or value is pandas.NA:
        return "give None"
    if isinstance(value, pandas.Timestamp):
        return "give x.to_pydatetime() or x.to_datetime64()"
    if isinstance(value, pandas.Timedelta):
        return "give x.to_pytimedelta() or x.to_timedelta64()"
    if isinstance(value, pandas.Index):
        return "give x.to_frame() or x.to_numpy()"
    return "give a DataFrame, a Series or NumPy arrays"
