"""The options of the magics."""

from __future__ import annotations

import argparse
import difflib
import re
import shlex
from dataclasses import dataclass
from functools import lru_cache
from typing import NoReturn

from gpulayer.client.errors import GpulayerError
from gpulayer.protocol.types import Requirements
from gpulayer.source import Limits

_EXAMPLES = """\
examples:
  %%gpulayer --accelerator cuda              run this cell on a machine with a CUDA device
  %%gpulayer --session train                 keep the kernel, its variables and its device for the next cells
  %%gpulayer --worker gpu-box-1 --detach     run it there, and give the notebook back at once
  %gpulayer status                           machines, and the last jobs
  %gpulayer attach k3f9                      all of a job's output, from its first line
"""
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKmMgG]?)[bB]?")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h)?")
_SECONDS = {None: 1, "s": 1, "m": 60, "min": 60, "h": 3600}
_ACCELERATORS = ("cuda", "mps", "cpu")
_MEANT = {"gpu": "cuda", "nvidia": "cuda", "metal": "mps", "apple": "mps"}
_LIMITS = Limits()
_NAME_LETTERS = 64


class UsageError(GpulayerError):
    """A magic's line that can't be understood: what, and what was probably meant."""


class HelpWanted(Exception):
    """`-h`: the text to show."""


@dataclass(frozen=True, kw_only=True)
class CellOptions:
    """The options of `%%gpulayer`."""

    requirements: Requirements
    session: str | None = None
    detach: bool = False
    timeout_s: float | None = None
    max_output_bytes: int = 1_000_000
    source: str | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    limits: Limits = _LIMITS


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, with the nearest option for a wrong one."""
        wrong = re.match(r"unrecognized arguments: (\S+)", message)
        if wrong and not wrong.group(1).startswith("-"):
            raise UsageError(f"{wrong.group(1)!r} belongs to no option (%%gpulayer -h lists them)")
        if wrong:
            options = [o for action in self._actions for o in action.option_strings if o.startswith("--")]
            near = difflib.get_close_matches(wrong.group(1).split("=")[0], options, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise UsageError(f"unknown option {wrong.group(1)}{hint} (%%gpulayer -h lists them)")
        message = message.removeprefix("argument ").replace(": expected one argument", " needs a value")
        raise UsageError(f"{message} (%%gpulayer -h shows the options)")


def parse_size(text: str) -> int:
    """'200kB', '5 MB' as bytes."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write it like 500kB or 20MB")
    return int(float(match.group(1)) * 1000 ** " kmg".index(match.group(2).lower() or " "))


def parse_duration(text: str) -> float:
    """'90', '90s', '5min', '2h' as seconds."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration; write it like 90s, 5min or 2h")
    return float(match.group(1)) * _SECONDS[match.group(2)]


def _time_limit(text: str) -> float:
    limit_s = parse_duration(text)
    if limit_s <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} leaves no time at all; write it like 90s, 5min or 2h")
    return limit_s


def _count(text: str) -> int:
    if not re.fullmatch(r"-?\d{1,9}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number")
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is too few: at least 1")
    return int(text)


def _name(text: str) -> str:
    if not text.strip() or len(text) > _NAME_LETTERS or not text.isprintable():
        raise argparse.ArgumentTypeError(f"{text[:_NAME_LETTERS]!r} is no name: 1 to {_NAME_LETTERS} letters")
    return text


def _accelerator(text: str) -> str:
    if text not in _ACCELERATORS:
        near = _MEANT.get(text.lower()) or next(iter(difflib.get_close_matches(text.lower(), _ACCELERATORS, n=1)), "")
        hint = f"; did you mean {near}?" if near else ""
        raise argparse.ArgumentTypeError(f"unknown accelerator {text!r}: cuda, mps or cpu{hint}")
    return text


@lru_cache(maxsize=1)
def cell_parser() -> argparse.ArgumentParser:
    """The parser of `%%gpulayer`."""
    parser = _Parser(
        prog="%%gpulayer",
        description="Run this cell on a worker; its output comes back here while it runs.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-h", "--help", action="store_true", help="show this")
    add("--accelerator", type=_accelerator, metavar="KIND", help="cuda or mps; cpu, or nothing, for any machine")
    add("--devices", type=_count, metavar="N", help="how many accelerators of that kind (default 1)")
    add("--worker", type=_name, metavar="NAME", help="on this machine only")
    add("--session", type=_name, metavar="NAME",
        help="keep the kernel of this name between cells; without it each cell is fresh")  # fmt: skip
    add("--detach", action="store_true", help="don't wait; %%gpulayer attach shows the output later")
    add("--timeout", type=_time_limit, metavar="TIME", help="end the cell after so much running time, like 10min")
    add("--source", metavar="FOLDER", help="the folder that travels with the cell (default: the notebook's own)")
    add("--include", action="append", default=[], metavar="GLOB",
        help="files that travel although an ignore file or their look of a secret keeps them here")  # fmt: skip
    add("--exclude", action="append", default=[], metavar="GLOB", help="files that stay here")
    add("--max-file", type=parse_size, default=_LIMITS.file_bytes, metavar="SIZE", help="of one file (default 50MB)")
    add("--max-bundle", type=parse_size, default=_LIMITS.bundle_bytes, metavar="SIZE", help="of all (default 200MB)")
    add("--max-files", type=_count, default=_LIMITS.files, metavar="N", help="that travel (default 100000)")
    add("--max-output", type=parse_size, default=1_000_000, metavar="SIZE",
        help="of more text than this, show head and tail (default 1MB)")  # fmt: skip
    return parser


def parse_cell_line(line: str) -> CellOptions:
    """The options of a cell magic's line. Raises `UsageError` or `HelpWanted`."""
    parser = cell_parser()
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"the line can't be read: {error}") from error
    given = parser.parse_args(words)
    if given.help:
        raise HelpWanted(parser.format_help())
    if given.devices is not None and given.accelerator in (None, "cpu"):
        raise UsageError("--devices counts accelerators: name their kind too, like --accelerator cuda")
    requirements = Requirements(accelerator=given.accelerator, devices=given.devices or 0, worker=given.worker)
    return CellOptions(
        requirements=requirements,
        session=given.session,
        detach=given.detach,
        timeout_s=given.timeout,
        max_output_bytes=given.max_output,
        source=given.source,
        include=tuple(given.include),
        exclude=tuple(given.exclude),
        limits=Limits(bundle_bytes=given.max_bundle, file_bytes=given.max_file, files=given.max_files),
    )
