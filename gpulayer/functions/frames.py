"""Tracebacks from a caller's line to ours: what lies below, in our code, says nothing to whoever called."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from gpulayer.client.errors import GpulayerError

P = ParamSpec("P")
R = TypeVar("R")
E = TypeVar("E", bound=BaseException)

SHORT = (GpulayerError, KeyboardInterrupt)
"""What people are to read without frames of ours; anything else is a fault of ours, or came of their own code."""

_OURS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_PYTHONS = os.path.join(os.path.dirname(os.path.abspath(os.__file__)), "")


def shortened(error: E) -> E:
    """An error without its traceback, to be raised again; one that came of code that is not ours stays as it is."""
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith((_OURS, _PYTHONS)) or "-packages" in file.removeprefix(_OURS):
            return error
        trace = trace.tb_next
    return error.with_traceback(None)


def shortly(function: Callable[P, R]) -> Callable[P, R]:
    """A function whose errors come from itself."""

    @functools.wraps(function)
    def short(*args: P.args, **kwargs: P.kwargs) -> R:
        __tracebackhide__ = True
        try:
            return function(*args, **kwargs)
        except SHORT as error:
            raise shortened(error) from error.__cause__

    return short
