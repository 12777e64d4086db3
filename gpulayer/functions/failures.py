"""What a call raises here that went wrong there: an exception of the same name, with the remote traceback."""

from __future__ import annotations

import builtins
from typing import Any

import msgspec

from gpulayer.client.errors import JobCancelled, JobFailed, JobRejected, RemoteError
from gpulayer.protocol.calls import CallFailure, MapView
from gpulayer.protocol.types import JobView, Requirements, State
from gpulayer.words import reasons

_OWN_WAYS: tuple[type[BaseException], ...] = (StopIteration, StopAsyncIteration)
if hasattr(builtins, "BaseExceptionGroup"):
    _OWN_WAYS += (getattr(builtins, "BaseExceptionGroup"),)  # noqa: B009 Python 3.10 has none

#: What a call raises whose function did not raise itself, by the kind of failure: its name, and what it also is.
_KINDS: dict[str, tuple[str, type[Exception]]] = {
    "value": ("ResultRefused", TypeError),
    "timeout": ("CallTimedOut", TimeoutError),
    "died": ("RunnerDied", RuntimeError),
}
_decoder = msgspec.json.Decoder(CallFailure)


class CallError(RemoteError):
    """A call that failed. `kind`: 'raised', 'load', 'value', 'timeout', 'died'."""

    kind: str = "raised"

    def __str__(self) -> str:
        return self.evalue  # KeyError shows quotes around it


def failure_of(data: bytes) -> CallFailure:
    """What stands in the place of a failed call's result."""
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError:
        return CallFailure(kind="died", text=bytes(data[:200]).decode(errors="replace") or "no reason was given")


def call_error(failure: CallFailure, *, call: str = "", index: int = 0, hint: str = "") -> CallError:
    """The exception to be raised here. It is also of the builtin class that the remote one was of."""
    name, base = _KINDS.get(failure.kind, ("", None))
    if base is None:
        name, base = failure.type or "Exception", _builtin(failure.type)
    module, _, short = name.rpartition(".")
    lines = failure.traceback.splitlines() or [f"{name}: {failure.text}" if failure.text else name]
    bases = (CallError,) if base is None else (CallError, base)
    known = base is not None and base.__name__ == short
    made: Any = type(short, bases, {"__module__": "builtins" if known else module or "gpulayer", "__qualname__": short})
    error: CallError = made(short, failure.text, lines)
    error.call, error.index, error.worker, error.kind, error.hint = call, index, failure.worker, failure.kind, hint
    _show_under(error)
    return error


def _builtin(name: str) -> type[Exception] | None:
    """The builtin class of this name that can be made of a text alone, or one that it derives from."""
    found = getattr(builtins, name.removeprefix("builtins."), None)
    if not isinstance(found, type) or not issubclass(found, Exception) or found is Exception:
        return None
    if issubclass(found, UnicodeError):
        return UnicodeError if found is UnicodeError else ValueError
    return None if issubclass(found, _OWN_WAYS) else found


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
