"""The options of the magics."""

from __future__ import annotations

import argparse
import difflib
import keyword
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn, TypeVar

from gpulayer import parsing, placement
from gpulayer.client.errors import GpulayerError
from gpulayer.client.submission import Input, parse_input
from gpulayer.protocol.types import Requirements
from gpulayer.source import Limits

T = TypeVar("T")

_EXAMPLES = """\
examples:
  %%gpulayer --accelerator cuda              run this cell on a machine with a CUDA device
  %%gpulayer --accelerator cuda --min-vram 40GB --framework 'torch>=2.4'
  %%gpulayer --session train                 keep the kernel, its variables and its device for the next cells
  %%gpulayer --worker gpu-box-1 --detach     run it there, and give the notebook back at once
  %%gpulayer --in x,y --out model            begin with these variables, and bring this one back
  %%gpulayer --output 'results/*.csv'        bring files back that the cell made
  %gpulayer session train                    one session for all cells of this notebook
  %gpulayer status                           machines, the last jobs, sessions
  %gpulayer attach k3f9                      all of a job's output, from its first line
"""
_LIMITS = Limits()

MAX_OUTPUT_BYTES = 200_000
"""Of text that a cell shows: a page draws so much in less than 100 ms, and a notebook stays small enough for git."""
_ANYWHERE = Requirements()
COMMANDS = ("status", "jobs", "logs", "attach", "cancel", "explain", "sessions", "session", "release", "fleet")
"""What `%gpulayer` can be asked for; the commands themselves stand in `commands.py`."""


class UsageError(GpulayerError):
    """A magic's line that can't be understood: what, and what was probably meant."""


class HelpWanted(Exception):
    """`-h`: the text to show."""


@dataclass(frozen=True, kw_only=True)
class CellOptions:
    """The options of `%%gpulayer`."""

    requirements: Requirements
    session: str | None = None
    idle_timeout_s: float | None = None  # of the session that the cell opens; None for the usual one
    detach: bool = False
    quiet: bool = False  # no status line
    name: str = ""  # of the job; '' for one made of the notebook's
    timeout_s: float | None = None
    max_output_bytes: int = MAX_OUTPUT_BYTES
    source: str | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    limits: Limits = _LIMITS
    wait_for_worker: bool = False  # where no worker could take it
    inputs: tuple[str, ...] = ()  # names of variables that go with the cell
    outputs: tuple[str, ...] = ()  # names of variables that come back
    output_globs: tuple[str, ...] = ()  # files that come back
    files: tuple[Input, ...] = ()  # further files and folders that go with the cell


@dataclass(frozen=True, kw_only=True)
class NotebookSession:
    """The session of all cells of a notebook that name no other, as `%gpulayer session NAME` set it."""

    name: str
    requirements: Requirements = _ANYWHERE
    wait_for_worker: bool = False
    idle_timeout_s: float | None = None


class Parser(argparse.ArgumentParser):
    """argparse's, whose help is for a notebook, and whose errors are one line."""

    def __init__(self, prog: str, description: str, examples: str):
        super().__init__(
            prog=prog,
            description=description,
            epilog=examples,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            add_help=False,
            allow_abbrev=False,
        )
        self.add_argument("-h", "--help", action="store_true", help="show this")

    def error(self, message: str) -> NoReturn:
        """One line, with the nearest option for a wrong one."""
        wrong = re.match(r"unrecognized arguments: (\S+)", message)
        if wrong and not wrong.group(1).startswith("-"):
            raise UsageError(self._of_no_option(wrong.group(1)))
        if wrong:
            near = difflib.get_close_matches(wrong.group(1).split("=")[0], self.options(), n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise UsageError(f"unknown option {wrong.group(1)}{hint} ({self.prog} -h lists them)")
        lacking = message.removeprefix("the following arguments are required: ")
        if lacking != message:
            raise UsageError(f"{self.prog} {lacking}: {lacking} is missing ({self.prog} -h)")
        message = message.removeprefix("argument ").replace(": expected one argument", " needs a value")
        raise UsageError(f"{message} ({self.prog} -h shows the options)")

    def options(self) -> list[str]:
        """The long names of all options."""
        return [name for action in self._actions for name in action.option_strings if name.startswith("--")]

    def takes_value(self, option: str) -> bool:
        """Whether this option has a value behind it."""
        return any(option in action.option_strings and action.nargs is None for action in self._actions)

    def _of_no_option(self, word: str) -> str:
        if not self.prog.startswith("%%"):
            return f"{self.prog} takes nothing more, got {word!r} ({self.prog} -h)"
        if word in COMMANDS:
            return f"{word!r} is a command of a line of its own: %gpulayer {word}, with one %"
        return f"{word!r} belongs to no option (%%gpulayer -h lists them)"


def parse_variables(text: str) -> list[str]:
    """'a,b' as names of variables."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if not name.isidentifier() or keyword.iskeyword(name):
            raise argparse.ArgumentTypeError(f"{name!r} is no name of a variable; write them like a,b")
    return names


def parse_glob(text: str) -> str:
    """A glob of files in the cell's folder."""
    parts = text.split("/")
    if not text.strip() or ".." in parts or text.startswith("~"):
        raise argparse.ArgumentTypeError(f"{text!r} is no glob below the cell's folder; write it like results/*.csv")
    return text


def _argument(parse: Callable[[str], T]) -> Callable[[str], T]:
    """As argparse wants it, which says a ValueError in its own words."""

    def read(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return read


parse_size, parse_time_limit = _argument(parsing.parse_size), _argument(parsing.parse_time_limit)
parse_count, parse_name = _argument(parsing.parse_count), _argument(parsing.parse_name)


@lru_cache(maxsize=1)
def cell_parser() -> Parser:
    """The parser of `%%gpulayer`."""
    parser = Parser("%%gpulayer", "Run this cell on a worker; its output comes back here while it runs.", _EXAMPLES)
    add = parser.add_argument
    add_place(parser)
    add("--session", type=parse_name, metavar="NAME",
        help="keep the kernel of this name between cells; without it each cell is fresh")  # fmt: skip
    add_idle_timeout(parser)
    add(
        "--name", type=parse_name, metavar="NAME", help="what the job is called in lists (default: the notebook's name)"
    )
    add("--quiet", action="store_true", help="no status line; errors show all the same")
    add("--detach", action="store_true", help="don't wait; %%gpulayer attach shows the output later")
    add("--in", type=parse_variables, action="extend", default=[], dest="inputs", metavar="A,B",
        help="variables of this notebook whose values the cell begins with")  # fmt: skip
    add("--out", type=parse_variables, action="extend", default=[], dest="outputs", metavar="C,D",
        help="variables of the cell whose values come back into this notebook")  # fmt: skip
    add("--output", type=parse_glob, action="append", default=[], dest="output_globs", metavar="GLOB",
        help="files that come back if the cell made or changed them, like 'results/*.csv'")  # fmt: skip
    add("--timeout", type=parse_time_limit, metavar="TIME", help="end the cell after so much running time, like 10min")
    add("--source", metavar="FOLDER", help="the folder that travels with the cell (default: the notebook's own)")
    add("--include", action="append", default=[], metavar="GLOB",
        help="files that travel although an ignore file or their look of a secret keeps them here")  # fmt: skip
    add("--exclude", action="append", default=[], metavar="GLOB", help="files that stay here")
    add("--input", type=parse_input, action="append", default=[], dest="files", metavar="SRC[:DST]",
        help="a file or folder of any size that goes with this cell, and where it lies then")  # fmt: skip
    add("--max-file", type=parse_size, default=_LIMITS.file_bytes, metavar="SIZE", help="of one file (default 50MB)")
    add("--max-bundle", type=parse_size, default=_LIMITS.bundle_bytes, metavar="SIZE", help="of all (default 200MB)")
    add("--max-files", type=parse_count, default=_LIMITS.files, metavar="N", help="that travel (default 100000)")
    add_max_output(parser)
    return parser


def add_place(parser: Parser) -> None:
    """The options that say where: the same as in the terminal."""
    for option in placement.OPTIONS:
        first = option.help[:1] if option.help[1:2].isupper() else option.help[:1].lower()  # RAM, CUDA
        settings: dict[str, Any] = {"dest": option.keyword, "help": first + option.help[1:].removesuffix(".")}
        if not option.metavar:
            settings |= {"action": "store_true"}
        else:
            settings |= {"metavar": option.metavar} | ({"action": "append", "default": []} if option.repeats else {})
        parser.add_argument(option.flag, **settings)


def add_idle_timeout(parser: Parser) -> None:
    """How long a session is kept."""
    parser.add_argument("--idle-timeout", type=parse_time_limit, metavar="TIME",
        help="end the session that is opened here after so long without a cell (default 30min)")  # fmt: skip


def add_max_output(parser: Parser) -> None:
    """How much text is shown."""
    parser.add_argument("--max-output", type=parse_size, default=MAX_OUTPUT_BYTES, metavar="SIZE",
        help="of more text than this, show head and tail (default 200kB)")  # fmt: skip


def requirements_of(given: argparse.Namespace, *, one_machine: bool = True) -> Requirements:
    """What the options that say where ask for; a cell runs on `one_machine`. Raises `UsageError`."""
    try:
        requirements = placement.requirements(vars(given), placement.as_flag)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if one_machine and requirements.nodes > 1:
        raise UsageError("--nodes: a cell runs on one machine; a command on several: gpulayer submit --nodes …")
    return requirements


def split(line: str) -> list[str]:
    """A magic's line as words. Raises `UsageError`."""
    try:
        return shlex.split(line)
    except ValueError as error:
        raise UsageError(f"the line can't be read: {error}") from error


def parse_cell_line(line: str, kept: NotebookSession | None = None) -> CellOptions:
    """The options of a cell magic's line, in a notebook that has the session `kept`.

    Raises `UsageError` or `HelpWanted`.
    """
    parser = cell_parser()
    given = parser.parse_args(split(line))
    if given.help:
        raise HelpWanted(parser.format_help())
    requirements, session, idle_timeout_s = requirements_of(given), given.session, given.idle_timeout
    waits = given.wait_for_worker
    if kept is not None and session in (None, kept.name):
        session, idle_timeout_s = kept.name, idle_timeout_s or kept.idle_timeout_s
        if requirements == _ANYWHERE:
            requirements, waits = kept.requirements, waits or kept.wait_for_worker
    if idle_timeout_s is not None and session is None:
        raise UsageError("--idle-timeout is of a session: name one with --session NAME")
    return CellOptions(
        requirements=requirements,
        session=session,
        idle_timeout_s=idle_timeout_s,
        quiet=given.quiet,
        name=given.name or "",
        detach=given.detach,
        wait_for_worker=waits,
        timeout_s=given.timeout,
        max_output_bytes=given.max_output,
        inputs=tuple(dict.fromkeys(given.inputs)),
        outputs=tuple(dict.fromkeys(given.outputs)),
        output_globs=tuple(dict.fromkeys(given.output_globs)),
        source=given.source,
        include=tuple(given.include),
        exclude=tuple(given.exclude),
        files=tuple(given.files),
        limits=Limits(bundle_bytes=given.max_bundle, file_bytes=given.max_file, files=given.max_files),
    )
