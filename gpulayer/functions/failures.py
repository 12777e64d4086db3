"""What a call raises here that went wrong there: an exception of the same name, with the remote traceback."""

from __future__ import annotations

import builtins
import os
import re
import shlex
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from gpulayer.client.errors import JobCancelled, JobFailed, JobRejected, RemoteError
from gpulayer.functions.kinds import class_here
from gpulayer.protocol.calls import CallFailure, MapView
from gpulayer.protocol.types import JobView, Requirements, State
from gpulayer.source.leftout import why_missing
from gpulayer.words import reasons

if TYPE_CHECKING:
    from gpulayer.source import Bundle

#: What a call raises whose function did not raise itself, by the kind of failure: its name, and what it also is.
_KINDS: dict[str, tuple[str, type[Exception]]] = {
    "value": ("ResultRefused", TypeError),
    "timeout": ("CallTimedOut", TimeoutError),
    "died": ("RunnerDied", RuntimeError),
}
_INCLUDE = re.compile(r"--include (.+) takes it along")  # a terminal's words
_NO_FILE = re.compile(r"^FileNotFoundError: .*: '([^']+)'$")
_decoder = msgspec.json.Decoder(CallFailure)


class CallError(RemoteError):
    """A call that failed. `kind`: 'raised', 'load', 'value', 'timeout', 'died'."""

    kind: str = "raised"

    def __init__(self, ename: str, evalue: str, traceback: list[str]):
        Exception.__init__(self, evalue)  # not as a class that it is also of: that may want more than a text
        self._say(ename, evalue, traceback)

    def __str__(self) -> str:
        return self.evalue  # KeyError shows quotes around it


def failure_of(data: bytes, cells: Mapping[str, str] = MappingProxyType({})) -> CallFailure:
    """What stands in the place of a failed call's result; `cells`: what its traceback calls cells, and people do."""
    try:
        failure = _decoder.decode(data)
        text = failure.traceback
        for name, shown in cells.items():
            text = text.replace(f'  File "{name}", line ', f'  File "{shown}", line ')
        return failure if text is failure.traceback else replace(failure, traceback=text)
    except msgspec.MsgspecError:
        return CallFailure(kind="died", text=bytes(data[:200]).decode(errors="replace") or "no reason was given")


def what_helps(failure: CallFailure, name: str, bundle: Bundle | None) -> str:
    """What to do about a file or a module that is not there; '' where that is not why it failed, or not known.

    `name`: the function's; `bundle`: the files that travelled with it.
    """
    if failure.kind not in ("raised", "load"):
        return ""
    said = f"{failure.type}: {failure.text}"
    if bundle is not None:
        hint = why_missing(bundle, said)
        return _INCLUDE.sub(lambda found: f"include={shlex.split(found[1])} takes it along", hint)
    lacks = _NO_FILE.search(said)
    if lacks is None or os.path.isabs(lacks[1]) or not os.path.exists(lacks[1]):
        return ""
    return f"{lacks[1]} is here, and no file travels with {name}: gl.remote(source='.') takes this folder along"


def call_error(failure: CallFailure, *, call: str = "", index: int = 0, hint: str = "") -> CallError:
    """The exception to be raised here. It is also of the class that the remote one was of, where that is known here."""
    name, base = _KINDS.get(failure.kind, ("", None))
    if base is None:
        name = failure.type or "Exception"
        base = class_here(failure.type, failure.base)
    module, _, short = name.rpartition(".")
    lines = failure.traceback.splitlines() or [f"{name}: {failure.text}" if failure.text else name]
    names = {"__module__": module or ("gpulayer" if failure.kind in _KINDS else "__main__"), "__qualname__": short}
    if not module and hasattr(builtins, short):
        names["__module__"] = "builtins"
    try:
        made: Any = type(short, (CallError,) if base is None else (CallError, base), names)
    except TypeError:  # no class can be of both
        made = type(short, (CallError,), names)
    error: CallError = made(short, failure.text, lines)
    error.call, error.index, error.worker, error.kind, error.hint = call, index, failure.worker, failure.kind, hint
    _show_under(error)
    return error


def _show_under(error: CallError) -> None:
    """Where Python prints the exception itself, the remote traceback stands under it."""
    where = f" on {error.worker}" if error.worker else ""
    notes = [f"remote traceback{where}:", *error.traceback] if len(error.traceback) > 1 else []
    if error.hint:
        notes.append(f"gpulayer: {error.hint}")
    if notes and hasattr(error, "add_note"):
        error.add_note("\n".join(notes))  # pyright: ignore[reportAttributeAccessIssue]
    elif notes:
        error.__cause__ = _Remote("\n".join(["", *notes]))


class _Remote(Exception):
    """The remote traceback, for Python 3.10, which knows no notes."""


# ---------------------------------------------------------------- maps that ended otherwise


def job_view(view: MapView, requirements: Requirements) -> JobView:
    """A map in the words of jobs."""
    return JobView(
        id=view.id,
        state=view.state,
        kind="calls",
        name=view.name,
        worker=", ".join(view.workers) or None,
        requirements=requirements,
        reasons=view.reasons,
        nearest=view.nearest,
        progress=view.progress,
        cancelling=view.cancelling,
        submitted_at=view.opened_at,
        started_at=view.started_at,
        ended_at=view.ended_at,
    )


def map_error(view: MapView, requirements: Requirements) -> Exception:
    """Why a map ended without all of its results, where no call says it."""
    what = f"{'call' if view.single else 'map'} {view.id}"
    job = job_view(view, requirements)
    why = f": {view.problem}" if view.problem else ""
    if view.state is State.REJECTED:
        told = "; ".join(reasons(job)) + (f" (nearest: {view.nearest})" if view.nearest else "")
        return JobRejected(f"no machine could run {what}: {told or view.problem or 'no reason was given'}", job)
    if view.state is State.CANCELLED:
        return JobCancelled(f"{what} was cancelled{why}", job)
    return JobFailed(f"{what} failed{why or ': no reason was given'}", job)
