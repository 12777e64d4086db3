"""The words of refusals: what a function uses, what that is, what to do."""

from __future__ import annotations

import functools
import io
import types
from collections.abc import Iterable, Mapping
from typing import Any

from gpulayer.source.capture.records import CaptureError

__all__ = ["kind_of", "missing", "refused", "remote_inside", "shown_size", "too_large"]

_OPENED = ("Connection", "Cursor", "socket", "Session", "Client", "Engine")
_FIT_FOR_NOTEBOOKS = frozenset({"get_ipython", "exit", "quit"})


def refused(user: str, name: str, value: Any) -> CaptureError:
    """Something that can't travel, used under a name."""
    if name in _FIT_FOR_NOTEBOOKS:
        return CaptureError(
            f"{user} uses {name!r} (a magic or a ! command is one too), which is there only in this notebook: "
            "use subprocess or plain Python in the function"
        )
    return CaptureError(f"{user} uses {name!r}, {kind_of(value)}, which can't travel: {_remedy(value)}")


def remote_inside(user: str, name: str, attribute: str, *, is_class: bool) -> CaptureError:
    """One of our own functions or classes, used where it runs as it is used here."""
    kind, call = ("class", f"{name}(…) makes an object") if is_class else ("function", f"{name}(…) calls it")
    return CaptureError(
        f"{user} uses {name}.{attribute}, and where it runs {name} is a plain {kind}: {call} right there, "
        f"or use {name}.{attribute} here, around {user.partition(' ')[0]}"
    )


def missing(user: str, name: str, names: Mapping[str, Any]) -> CaptureError:
    """A name that is not defined."""
    import difflib  # only where something is wrong

    near = difflib.get_close_matches(name, [each for each in names if not each.startswith("_")], n=1, cutoff=0.7)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return CaptureError(f"{user} uses {name!r}, which is not defined{hint}: define it before the call")


def too_large(user: str, name: str, size_bytes: int, others: Iterable[str], limit_bytes: int) -> CaptureError:
    """Data by value beyond the limit."""
    beside = [each for each in others if each != name]
    more = (
        f" together with {', '.join(map(repr, beside[:3]))}{' and others' if len(beside) > 3 else ''}" if beside else ""
    )
    return CaptureError(
        f"{user} uses {name!r}{more}, {shown_size(size_bytes)} of data, and a function takes along at most "
        f"{shown_size(limit_bytes)}: pass it as an argument, or gl.put it once and pass the reference"
    )


def kind_of(value: Any) -> str:
    """'a sqlite3.Connection', 'an io.TextIOWrapper', 'a generator'."""
    kind = type(value)
    module, name = str(kind.__module__), str(kind.__qualname__).replace("<locals>.", "")
    if isinstance(value, io.IOBase):
        module = "io"
    text = name if module in ("builtins", "__main__") else f"{module}.{name}"
    return f"{'an' if text[:1].lower() in 'aeio' else 'a'} {text}"


def shown_size(size_bytes: int) -> str:
    """'1.5 MB'."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size_bytes >= size:
            return f"{size_bytes / size:.3g} {unit}"
    return f"{size_bytes} bytes"


def _remedy(value: Any) -> str:
    if type(value).__module__.partition(".")[0] == "gpulayer":
        return "pass it as an argument"
    if isinstance(value, types.GeneratorType):
        return "pass list(x) of it as an argument, or make it inside the function"
    if isinstance(value, (types.MethodType, types.BuiltinMethodType)):
        return "call it inside the function on an object that is made there"
    if isinstance(value, functools.partial):
        return "write it as a function with def"
    if hasattr(type(value), "__dataclass_fields__"):
        return "make it inside the function, or give dataclasses.asdict(…) of it"
    if isinstance(value, types.ModuleType):
        return "put it into a file beside the notebook and import it"
    if isinstance(value, io.IOBase) or any(type(value).__name__.endswith(each) for each in _OPENED):
        return "open it inside the function, or pass what it is made of as an argument"
    return "make it inside the function, or pass what it is made of as an argument"
