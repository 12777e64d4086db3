"""What a person says of a function: the keyword arguments of `gl.remote` and `.with_options`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from gpulayer.client.errors import GpulayerError
from gpulayer.parsing import parse_size
from gpulayer.placement import Needs, known_keywords
from gpulayer.protocol.requirements import Requirements

if TYPE_CHECKING:
    from gpulayer.client.submission import Source

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class CallRefused(GpulayerError, TypeError):
    """What can't be called elsewhere as it is: what of it, and what to do. Nothing was sent."""


class Wishes(TypedDict, total=False):
    """The keyword arguments of `gl.remote` that are not of placement; see `remote`."""

    name: str
    retries: int
    backoff_s: float
    timeout_s: float | None
    isolate: bool
    idle_timeout_s: float
    memory_limit: int | str | None
    env: Mapping[str, str]
    source: str | Path | Source | Literal[False] | None
    include: Sequence[str]
    exclude: Sequence[str]
    max_runners: int | None


@dataclass(frozen=True, kw_only=True)
class Options:
    """All of it, checked. `requirements` are what `needs` say."""

    name: str = ""
    retries: int = 0
    backoff_s: float = 1.0
    timeout_s: float | None = None
    isolate: bool = False
    idle_timeout_s: float = 300.0
    memory_limit: int | str | None = None
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    source: str | Path | Source | Literal[False] | None = None
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    max_runners: int | None = None
    needs: Needs = field(default_factory=Needs)
    requirements: Requirements = field(default_factory=Requirements)
    memory_limit_bytes: int | None = None

    def merged(self, given: Mapping[str, Any], function: str = "remote") -> Options:
        """With other values for some of them. Raises `CallRefused`, TypeError for an unknown keyword."""
        own = {name: value for name, value in given.items() if name in Wishes.__annotations__}
        placement = {name: value for name, value in given.items() if name not in own}
        known_keywords(function, placement, Wishes.__annotations__)
        merged = replace(self, **own, needs=replace(self.needs, **placement))
        return replace(merged, requirements=_requirements(merged.needs), memory_limit_bytes=_checked(merged))


def _requirements(needs: Needs) -> Requirements:
    try:
        requirements = needs.requirements()
    except ValueError as error:
        raise CallRefused(str(error)) from None
    if requirements.nodes > 1:
        raise CallRefused(f"a call runs on one machine: nodes={requirements.nodes} is for commands; leave it out")
    return requirements


def _checked(options: Options) -> int | None:
    """The memory limit in bytes. Raises `CallRefused`."""
    _number("retries", options.retries, lambda value: value >= 0 and value == int(value), "is no number of retries")
    _number("backoff_s", options.backoff_s, lambda value: value >= 0, "is less than nothing")
    _number("idle_timeout_s", options.idle_timeout_s, lambda value: value >= 0, "is less than nothing")
    if options.timeout_s is not None:
        _number("timeout_s", options.timeout_s, lambda value: value > 0, "leaves no time at all")
    if options.max_runners is not None:
        _number("max_runners", options.max_runners, lambda value: value >= 1, "leaves nobody to run a call")
    for name in ("include", "exclude"):
        given = getattr(options, name)
        if isinstance(given, str):
            raise CallRefused(f"{name}={given!r} is one text; give a list: [{given!r}]")
    _check_env(options.env)
    return _size(options.memory_limit)


def _number(name: str, value: Any, fits: Callable[[Any], bool], wrong: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not fits(value):
        raise CallRefused(f"{name}={value!r} {wrong}")


def _size(value: int | str | None) -> int | None:
    if value is None:
        return None
    try:
        count = parse_size(value) if isinstance(value, str) else int(value)
    except ValueError:
        count = 0
    if count <= 0:
        raise CallRefused(f"memory_limit={value!r} is no size; write it like '8GB'")
    return count


def _check_env(env: Mapping[str, str]) -> None:
    for name, value in env.items():
        if not _VARIABLE.fullmatch(name):
            raise CallRefused(f"env: {name!r} is no name of a variable")
        if not isinstance(value, str) or "\0" in value:
            raise CallRefused(f"env: the value of {name} is no text that a variable can have: {value!r}")
        if name.startswith("GPULAYER_"):
            raise CallRefused(f"env: {name}: variables that begin with GPULAYER_ are set by GPUlayer itself")
