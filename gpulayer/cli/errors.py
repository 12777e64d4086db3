"""What went wrong, for a person in the terminal and for the shell."""

from __future__ import annotations

from typing import Any

from gpulayer.client.ending import FAILED, REFUSED, REJECTED, UNREACHABLE
from gpulayer.client.errors import ControlPlaneError, GpulayerError, JobRejected, RequestRefused
from gpulayer.explaining import reason_table

USAGE = 2
_NO_RIGHT = (401, 403)


class UsageError(GpulayerError):
    """A command line that can't be understood: what, and what was probably meant."""


def explained(error: Exception) -> tuple[list[str], int]:
    """The lines that say what went wrong, mostly one, and the exit code."""
    message: Any = getattr(error, "format_message", None)
    if message is not None:  # of the parser
        return [f"gpulayer: {_one_line(message())}{_help_of(error)}"], getattr(error, "exit_code", USAGE)
    if isinstance(error, UsageError):
        return [f"gpulayer: {error}"], USAGE
    if isinstance(error, JobRejected):
        return error.lines(), REJECTED
    if isinstance(error, RequestRefused):
        return _refused(error)
    if isinstance(error, ControlPlaneError):
        return [f"gpulayer: {_one_line(str(error))}"], UNREACHABLE
    if isinstance(error, GpulayerError):
        return [f"gpulayer: {_one_line(str(error))}"], FAILED
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return [f"gpulayer: {where}{error.strerror or error}"], FAILED
    what = _one_line(f"{type(error).__name__}: {error}")
    return [f"gpulayer: {what}; this is a fault of GPUlayer, gpulayer --debug … shows where"], FAILED


def _refused(error: RequestRefused) -> tuple[list[str], int]:
    problem = error.problem
    if problem.status in _NO_RIGHT:
        code = REFUSED
    elif problem.code in ("no_worker", "rejected"):
        code = REJECTED
    else:
        code = UNREACHABLE if problem.status in (503, 507) else FAILED
    return [f"gpulayer: {_one_line(problem.line())}", *reason_table(problem.reasons)], code


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _help_of(error: Exception) -> str:
    context: Any = getattr(error, "ctx", None)
    path = getattr(context, "command_path", "")
    return f" ({path} --help)" if path else ""
