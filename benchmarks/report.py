"""What every benchmark hands in: rows with goals, a table for people, one JSON object as the last line."""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import platform
import re
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

_GOAL = re.compile(r"(<=|>=)\s*(-?\d+(?:\.\d+)?)")
_OURS = ("gpulayer", "msgspec", "tornado", "websockets")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measured figure."""

    name: str  # such as 'cell.overhead_ms'
    value: float  # the median, where there are samples
    unit: str
    min: float | None = None
    max: float | None = None
    note: str = ""
    goal: str = ""  # '<= 8' or '>= 2.0'; '' for a figure that is only reported

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise ValueError(f"{self.name} is {self.value}: it was not measured")
        if self.goal and not _GOAL.fullmatch(self.goal):
            raise ValueError(f"{self.name}: the goal {self.goal!r} is not of the form '<= 8' or '>= 2.0'")

    @property
    def missed(self) -> bool:
        """Whether it has a goal and does not reach it."""
        match = _GOAL.fullmatch(self.goal)
        if match is None:
            return False
        limit = float(match.group(2))
        return self.value > limit if match.group(1) == "<=" else self.value < limit


def median(name: str, samples: Sequence[float], unit: str, *, note: str = "", goal: str = "") -> Row:
    """A row of samples: their median, smallest and largest. Raises ValueError for no samples."""
    if not samples:
        raise ValueError(f"{name} has no samples: it was not measured")
    return Row(
        name=name,
        value=statistics.median(samples),
        unit=unit,
        min=min(samples),
        max=max(samples),
        note=note,
        goal=goal,
    )


class Report:
    """The rows of one run of one benchmark."""

    def __init__(self, benchmark: str, *, packages: Iterable[str] = ()):
        """`packages`: distributions whose versions matter, beside our own."""
        self.benchmark = benchmark
        self.rows: list[Row] = []
        self._packages = (*_OURS, *packages)

    def add(self, row: Row) -> None:
        """Take a row. Raises ValueError for a name that is there already."""
        if any(row.name == other.name for other in self.rows):
            raise ValueError(f"{row.name} was reported twice")
        self.rows.append(row)

    def as_dict(self) -> dict[str, Any]:
        """What the last line holds."""
        return {
            "benchmark": self.benchmark,
            "rows": [_json_row(row) for row in self.rows],
            "versions": versions(self._packages),
            "machine": machine(),
        }

    def finish(self, to: TextIO | None = None) -> int:
        """Print the table, which goals were missed, and the JSON object; the exit code: 1 when one was missed."""
        out: TextIO = to or sys.stdout
        out.write(table(self.rows) + "\n")
        missed = [row for row in self.rows if row.missed]
        for row in missed:
            out.write(f"missed: {row.name} is {figure(row.value)} {row.unit}, the goal is {row.goal}\n")
        out.write(json.dumps(self.as_dict(), ensure_ascii=False) + "\n")
        out.flush()
        return 1 if missed else 0


def _json_row(row: Row) -> dict[str, Any]:
    fields = ("name", "value", "unit", "min", "max", "note", "goal")
    return {name: getattr(row, name) for name in fields if getattr(row, name) not in (None, "")}


def figure(value: float | None) -> str:
    """A number to three or four places that matter: '0.0412', '9.81', '20,000'."""
    if value is None:
        return ""
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{digits}f}"


def table(rows: Sequence[Row]) -> str:
    """Rows as aligned text."""
    head = ("", "row", "median", "unit", "min", "max", "goal", "note")
    lines = [head] + [
        (
            "✗" if row.missed else "✓" if row.goal else " ",
            row.name,
            figure(row.value),
            row.unit,
            figure(row.min),
            figure(row.max),
            row.goal,
            row.note,
        )
        for row in rows
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    numbers = (2, 4, 5)
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column in numbers else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Versions of Python and of distributions; '' for one that is not installed."""
    found = {"python": platform.python_version()}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = ""
    return found


def machine() -> dict[str, Any]:
    """What the figures were measured on; no name of the machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    ram_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": cores,
        "ram_gb": round(ram_bytes / 1e9, 1),
        "load_1min": round(os.getloadavg()[0], 2),
    }


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux
        return platform.processor() or platform.machine()
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match.group(1).strip() if match else platform.machine()
