"""Why a call failed, as JSON: the fields of `gpulayer.protocol.calls.CallFailure`."""

from __future__ import annotations

import json
import os
import re
from types import TracebackType
from typing import Any

from .loading import MAIN

TEXT_CHARS = 16 * 1024
TRACEBACK_CHARS = 64 * 1024

_SESSIONS = re.compile(re.escape(MAIN) + r"[0-9a-f]{12}\.")
_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_ASYNCIO = os.path.join(os.path.dirname(os.path.abspath(os.__file__)), "asyncio", "")


def of_exception(error: BaseException, worker: str, kind: str = "raised") -> dict[str, Any]:
    """The failure that an exception of the user's is, whatever its methods do; the traceback begins in the user's code.

    `worker` is the machine's name.
    """
    return {
        "kind": kind,
        "type": _cut(_type_name(type(error)), 400),
        "base": next((kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins"), ""),
        "text": _cut(_as_at_home(_text(error)), TEXT_CHARS),
        "traceback": _cut(_as_at_home(_traceback(error)), TRACEBACK_CHARS),
        "worker": worker,
    }


def of_text(kind: str, type_name: str, text: str, worker: str) -> dict[str, Any]:
    """A failure that is no exception of the user's: one line says what happened."""
    text = _cut(_as_at_home(text), TEXT_CHARS)
    return {"kind": kind, "type": type_name, "text": text, "traceback": "", "worker": worker}


def pack(failure: dict[str, Any]) -> bytes:
    """A failure as bytes, in the place of a result."""
    return json.dumps(failure).encode()


def _type_name(kind: type) -> str:
    module, name = str(kind.__module__), str(kind.__qualname__)
    return name if module in ("builtins", "__main__") else _as_at_home(f"{module}.{name}")


def _as_at_home(text: str) -> str:
    """A text without our name for the module of a session's classes: 'MyError', as the session itself says it."""
    return _SESSIONS.sub("", text) if MAIN in text else text


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as second:  # noqa: BLE001 - its own code
        return f"<its text can't be had: {type(second).__name__}>"


def _traceback(error: BaseException) -> str:
    import traceback  # only where something is wrong

    try:
        shown = traceback.TracebackException(type(error), error, _users(error.__traceback__))
        return "".join(shown.format())
    except BaseException as second:  # noqa: BLE001 - __str__, __repr__ and __cause__ are code of the user's
        last = f"{type(error).__name__} (it can't be printed: {type(second).__name__})\n"
        return "".join((*_lines(error.__traceback__), last))


def _lines(trace: TracebackType | None) -> list[str]:
    import traceback

    try:
        return ["Traceback (most recent call last):\n", *traceback.format_tb(_users(trace))]
    except BaseException:  # noqa: BLE001 - no memory, or no stack
        return []


def _users(trace: TracebackType | None) -> TracebackType | None:
    """What is left of a traceback without the frames above the user's."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith((_OURS, _ASYNCIO)):
        trace = trace.tb_next
    return trace


def _cut(text: str, most: int) -> str:
    """`text`, the middle left out where it is too long, and printable as UTF-8."""
    if len(text) > most:
        half = most // 2
        text = f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
