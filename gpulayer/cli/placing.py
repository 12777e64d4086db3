"""The options of placement on the command line: of `gpulayer submit` and `gpulayer explain`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from gpulayer.cli.errors import UsageError
from gpulayer.placement import BY_KEYWORD, OPTIONS, Option, as_flag, checked

_HERE = "placement"
_KIND = inspect.Parameter.KEYWORD_ONLY


def takes_placement(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command these options in place of its parameter `placement`, which gets their values by keyword."""
    own = inspect.signature(command, eval_str=True)
    parameters: list[inspect.Parameter] = []
    for parameter in own.parameters.values():
        parameters += map(_parameter, OPTIONS) if parameter.name == _HERE else [parameter.replace(kind=_KIND)]

    @functools.wraps(command)
    def with_placement(**given: Any) -> int:
        placement = {name: given.pop(name) for name in BY_KEYWORD}
        try:
            values = checked(placement, as_flag)
        except ValueError as error:
            raise UsageError(str(error)) from error
        return command(**given, **{_HERE: values})

    shown: Any = with_placement
    shown.__signature__ = own.replace(parameters=parameters)
    return with_placement


def _parameter(option: Option) -> inspect.Parameter:
    about = typer.Option(option.flag, metavar=option.metavar or None, help=option.help, show_default=False)
    kind: Any = Annotated[bool, about]
    default: Any = False
    if option.metavar:
        default = None
        kind = Annotated[list[str] | None, about] if option.repeats else Annotated[str | None, about]
    return inspect.Parameter(option.keyword, _KIND, default=default, annotation=kind)
