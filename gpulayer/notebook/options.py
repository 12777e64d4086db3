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


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, with the nearest option for a wrong one."""
        wrong = re.match(r"unrecognized arguments: (\S+)", message)
        if wrong:
            options = [o for action in self._actions for o in action.option_strings if o.startswith("--")]
            near = difflib.get_close_matches(wrong.group(1).split("=")[0], options, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise UsageError(f"unknown option {wrong.group(1)}{hint} (%%gpulayer -h lists them)")
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
    add("--accelerator", metavar="KIND", help="cuda or mps; cpu, or nothing, for any machine")
    add("--devices", type=int, metavar="N", help="how many accelerators of that kind (default 1)")
    add("--worker", metavar="NAME", help="on this machine only")
    add("--session", metavar="NAME", help="keep the kernel of this name between cells; without it each cell is fresh")
    add("--detach", action="store_true", help="don't wait; %%gpulayer attach shows the output later")
    add("--timeout", type=parse_duration, metavar="TIME", help="end the cell after so much running time, like 10min")
    add("--source", metavar="FOLDER", help="the folder that travels with the cell (default: the notebook's own)")
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
    accelerator = given.accelerator
    if given.devices is not None and accelerator in (None, "cpu"):
        raise UsageError("--devices counts accelerators: name their kind too, like --accelerator cuda")
    if given.devices is not None and given.devices < 1:
        raise UsageError(f"--devices {given.devices}: at least 1")
    if accelerator not in (None, "cpu", "cuda", "mps"):
        raise UsageError(f"unknown accelerator {accelerator!r}: cuda, mps or cpu")
    requirements = Requirements(accelerator=accelerator, devices=given.devices or 0, worker=given.worker)
    return CellOptions(
        requirements=requirements,
        session=given.session,
        detach=given.detach,
        timeout_s=given.timeout,
        max_output_bytes=given.max_output,
        source=given.source,
    )
