"""What a person types behind an option, in a cell's line and in the terminal, as values.

Each function raises ValueError with one line that says what to write instead.
"""

from __future__ import annotations

import difflib
import re

ACCELERATORS = ("cuda", "rocm", "mps", "cpu")

_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s*(?:([kKmMgGtT])(i?))?[bB]?")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d|days?)?")
_SECONDS = {None: 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "day": 86400, "days": 86400}
_MEANT = {"gpu": "cuda", "nvidia": "cuda", "metal": "mps", "apple": "mps", "amd": "rocm", "hip": "rocm"}
_NAME_LETTERS = 64


def parse_size(text: str) -> int:
    """'200kB', '5 MB', '40GiB' as bytes."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no size; write it like 500kB or 20MB")
    unit, binary = (match.group(2) or " ").lower(), match.group(3)
    return int(float(match.group(1)) * (1024 if binary else 1000) ** " kmgt".index(unit))


def parse_duration(text: str) -> float:
    """'90', '90s', '5min', '2h', '30d' as seconds."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no duration; write it like 90s, 5min or 2h")
    return float(match.group(1)) * _SECONDS[match.group(2)]


def parse_time_limit(text: str) -> float:
    """A duration that is longer than nothing, in seconds."""
    limit_s = parse_duration(text)
    if limit_s <= 0:
        raise ValueError(f"{text!r} leaves no time at all; write it like 90s, 5min or 2h")
    return limit_s


def parse_count(text: str) -> int:
    """A whole number, at least 1."""
    if not re.fullmatch(r"-?\d{1,9}", text):
        raise ValueError(f"{text!r} is no whole number")
    if int(text) < 1:
        raise ValueError(f"{text} is too few: at least 1")
    return int(text)


def parse_name(text: str) -> str:
    """A name of a worker, a session or a job."""
    if not text.strip() or len(text) > _NAME_LETTERS or not text.isprintable():
        raise ValueError(f"{text[:_NAME_LETTERS]!r} is no name: 1 to {_NAME_LETTERS} letters")
    return text


def parse_accelerator(text: str) -> str:
    """A kind of accelerator."""
    if text not in ACCELERATORS:
        near = _MEANT.get(text.lower()) or next(iter(difflib.get_close_matches(text.lower(), ACCELERATORS, n=1)), "")
        hint = f"; did you mean {near}?" if near else ""
        raise ValueError(f"unknown accelerator {text!r}: cuda, rocm, mps or cpu{hint}")
    return text


def parse_pair(text: str) -> tuple[str, str]:
    """'K=V' as its two sides; V may hold further signs of equality, and be empty."""
    name, sign, value = text.partition("=")
    if not sign or not name.strip():
        raise ValueError(f"{text!r} is no pair; write it like name=value")
    return name.strip(), value
