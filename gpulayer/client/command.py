"""A command as a person asks for it, and as it is sent."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from gpulayer.client import asks
from gpulayer.client.asks import Ask
from gpulayer.client.errors import GpulayerError
from gpulayer.client.explanation import Explanation
from gpulayer.client.job import Job
from gpulayer.client.submission import Input, Source, checked_target, parse_input
from gpulayer.placement import Needs, Placing, known_keywords
from gpulayer.protocol.types import CommandSpec, JobSpec, Requirements

Array: TypeAlias = "str | int | range | Iterable[int]"

MOST_TASKS = 10_000
_NAME_LETTERS = 64
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class CommandRefused(GpulayerError, ValueError):
    """A command that can't be sent as it is: what of it, and what to write instead."""


@dataclass(frozen=True, kw_only=True)
class Command(Needs):
    """A program with all that is asked for it; `Client.submit` tells of the fields, `Placing` of where it may run."""

    argv: Sequence[str] | str
    source: str | Path | Source | None = None
    inputs: Sequence[str | tuple[str | Path, str] | Input] = ()
    outputs: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    cwd: str = ""
    retries: int = 0
    timeout_s: float | None = None
    grace_s: float = 5.0
    priority: int = 0
    name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    key: str | None = None
    after: Sequence[str | Job] = ()
    array: Array | None = None

    def source_folder(self) -> Source | None:
        """The folder that travels."""
        source = (
            self.source if self.source is None or isinstance(self.source, Source) else Source(folder=str(self.source))
        )
        if source is not None and not source.folder:
            raise CommandRefused("the source folder has no name; '.' is the current one")
        return source

    def all_inputs(self) -> tuple[Input, ...]:
        """What travels besides. Raises `SourceRefused`."""
        if isinstance(self.inputs, str):
            raise CommandRefused(f"inputs={self.inputs!r} is one text; give a list: [{self.inputs!r}]")
        return tuple(_input(each) for each in self.inputs)

    def spec(self, bundle: str) -> JobSpec:
        """What is sent, with the digest of its bundle ('' for none). Raises `CommandRefused`."""
        argv = argv_of(self.argv)
        if self.key == "":
            raise CommandRefused("the idempotency key is empty: every command without one would be the same job")
        command = CommandSpec(
            argv=argv,
            bundle=bundle,
            env=checked_env(self.env),
            cwd=checked_cwd(self.cwd),
            output_globs=checked_globs(self.outputs),
        )
        return JobSpec(
            command=command,
            requirements=self._requirements(),
            name=self.name or default_name(argv),
            timeout_s=_more_than_nothing("timeout_s", self.timeout_s),
            grace_s=_at_least_nothing("grace_s", self.grace_s),
            retries=int(_at_least_nothing("retries", self.retries)),
            priority=self.priority,
            labels=dict(self.labels),
            after=tuple(each.id if isinstance(each, Job) else each for each in self.after),
            array=() if self.array is None else ranges_of(self.array),
            wait_for_worker=self.wait_for_worker,
        )

    def _requirements(self) -> Requirements:
        try:
            requirements = self.requirements()
        except ValueError as error:
            raise CommandRefused(str(error)) from error
        if requirements.nodes > 1:
            for name, given in (("an array", self.array is not None), ("retries", self.retries > 0)):
                if given:
                    raise CommandRefused(
                        f"a command on {requirements.nodes} machines at once can't have {name}: leave one of them out"
                    )
        return requirements


def asked(placement: Placing) -> Ask[Explanation]:
    """The ask that explains what keyword arguments say. Raises `CommandRefused`, TypeError where one is unknown."""
    known_keywords("explain", placement)
    needs = Needs(**placement)
    try:
        return asks.explain(needs.requirements(), wait_for_worker=needs.wait_for_worker)
    except ValueError as error:
        raise CommandRefused(str(error)) from error


def _input(given: str | tuple[str | Path, str] | Input) -> Input:
    if isinstance(given, Input):
        return given
    if isinstance(given, str):
        return parse_input(given)
    source, target = str(given[0]), given[1]
    return Input(source=source, target=checked_target(f"{source}:{target}", target, source))


def argv_of(argv: Sequence[str] | str) -> tuple[str, ...]:
    """What is executed: a text is a shell's line. Raises `CommandRefused`."""
    if isinstance(argv, str):
        if not argv.strip():
            raise CommandRefused("the shell's line is empty")
        return ("/bin/sh", "-c", argv)
    words = tuple(str(word) for word in argv)
    if not words or not words[0]:
        raise CommandRefused("no command was named; write the program and its arguments")
    if any("\0" in word for word in words):
        raise CommandRefused("an argument holds a NUL byte, which no program can be given")
    return words


def default_name(argv: Sequence[str]) -> str:
    """What a command is called in lists: 'train.py' for 'python train.py --lr 3'."""
    if argv[:2] == ("/bin/sh", "-c") and len(argv) == 3:
        return _short(argv[2].strip().splitlines()[0])
    interpreter = re.fullmatch(r"(python|pypy)[\d.]*|bash|sh|zsh|node|ruby|perl|Rscript|julia", _base(argv[0]))
    script = next((word for word in argv[1:] if not word.startswith("-")), "") if interpreter else ""
    if interpreter and "-c" not in argv and "-m" not in argv and script:
        return _short(_base(script))
    if "-m" in argv[:-1]:
        return _short(argv[argv.index("-m") + 1])
    return _short(shlex.join(argv) if interpreter else _base(argv[0]))


def _base(path: str) -> str:
    """The last part of a path: thousands of commands are named at once, and `Path` takes its time."""
    return path.rstrip("/").rpartition("/")[2] or path


def _short(text: str) -> str:
    plain = text if text.isprintable() else "".join(letter if letter.isprintable() else " " for letter in text)
    plain = plain.strip()
    return plain if len(plain) <= _NAME_LETTERS else f"{plain[: _NAME_LETTERS - 1]}…"


def checked_env(env: Mapping[str, str]) -> dict[str, str]:
    """Variables of a command. Raises `CommandRefused`."""
    for name, value in env.items():
        if not _VARIABLE.fullmatch(name):
            raise CommandRefused(f"{name!r} is no name of a variable; write it like --env LR=0.1")
        if "\0" in value:
            raise CommandRefused(f"the variable {name} holds a NUL byte")
        if name.startswith("GPULAYER_"):
            raise CommandRefused(f"{name}: variables that begin with GPULAYER_ are set by GPUlayer itself")
    return dict(env)


def checked_cwd(cwd: str) -> str:
    """A folder below the job's own. Raises `CommandRefused`."""
    parts = [part for part in cwd.split("/") if part not in ("", ".")]
    if cwd.startswith("/") or ".." in parts or "\0" in cwd:
        raise CommandRefused(f"cwd {cwd!r} lies outside the job's folder; name a folder below it, like src")
    return "/".join(parts)


def checked_globs(globs: Sequence[str]) -> tuple[str, ...]:
    """Globs of files in the job's folder. Raises `CommandRefused`."""
    if isinstance(globs, str):
        raise CommandRefused(f"outputs={globs!r} is one text; give a list: [{globs!r}]")
    for glob in globs:
        if not glob.strip() or ".." in glob.split("/") or glob.startswith("~") or "\0" in glob:
            raise CommandRefused(f"{glob!r} is no glob below the job's folder; write it like 'results/*.csv'")
    return tuple(dict.fromkeys(globs))


def ranges_of(array: Array) -> tuple[tuple[int, int], ...]:
    """'0-95,100' or numbers as ranges, ascending and apart; a whole number N is 0 to N-1. Raises `CommandRefused`."""
    if isinstance(array, str):
        pairs = [_pair(part.strip(), array) for part in array.split(",")]
    elif isinstance(array, int):
        pairs = [(0, array - 1)]
    elif isinstance(array, range) and array.step == 1:
        pairs = [(array.start, array.stop - 1)] if array else []
    else:
        pairs = [(number, number) for number in itertools.islice(array, MOST_TASKS + 1)]
    ranges: list[tuple[int, int]] = []
    for first, last in sorted(pairs):
        if first < 0 or last < first:
            raise CommandRefused(f"array {array!r}: {first}-{last} is no range; write it like 0-95,100")
        if ranges and first <= ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], max(last, ranges[-1][1]))
        else:
            ranges.append((first, last))
    count = sum(last - first + 1 for first, last in ranges)
    if not count:
        raise CommandRefused("an array without indices has nothing to run")
    if count > MOST_TASKS:
        raise CommandRefused(f"an array has {MOST_TASKS:,} tasks at most, this one {count:,}: submit it in parts")
    return tuple(ranges)


def _pair(part: str, array: str) -> tuple[int, int]:
    match = _RANGE.fullmatch(part)
    if match is None:
        raise CommandRefused(f"array {array!r}: {part!r} is no index and no range; write it like 0-95,100")
    return int(match.group(1)), int(match.group(2) or match.group(1))


def _more_than_nothing(name: str, value: float | None) -> float | None:
    if value is not None and not value > 0:
        raise CommandRefused(f"{name}={value} leaves no time at all")
    return value


def _at_least_nothing(name: str, value: float) -> float:
    if not value >= 0:
        raise CommandRefused(f"{name}={value} is less than nothing")
    return value
