"""Memory limits of the kernel's own, for tests of its out-of-memory killer (Linux, root)."""

from __future__ import annotations

import contextlib
import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

from tests.support.processes import until

_LIMITS = ("memory.max", "memory.limit_in_bytes")  # of cgroup 2, and of cgroup 1


def _places() -> Iterator[Path]:
    """Folders in which a cgroup with a memory limit may be made: below our own, or below the root."""
    own = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        kind, _, options = rest.split(" ", 2)
        names = "" if kind == "cgroup2" else "memory"
        if kind != "cgroup2" and not (kind == "cgroup" and "memory" in options.split(" ")[-1].split(",")):
            continue
        mount = Path(fields.split(" ")[4])
        yield from (mount / path.lstrip("/") for _, named, path in own if names in named.split(","))
        yield mount


def why_no_limit() -> str:
    """Why no memory limit can be had here; '' where one can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "memory limits need root on Linux"
    with memory_limit(1 << 30) as made:
        return "" if made is not None else "there is no memory cgroup that may be written here"


@contextlib.contextmanager
def memory_limit(size_bytes: int) -> Iterator[Path | None]:
    """A cgroup whose processes have so much memory together; None where there can be none.

    Whoever writes a pid into its `cgroup.procs` puts that process there, and what it starts from then on.
    """
    made = next(filter(None, (_made(place, size_bytes) for place in _places())), None)
    try:
        yield made
    finally:
        if made is not None:
            until(lambda: _removed(made), f"{made} to be empty")


def _made(place: Path, size_bytes: int) -> Path | None:
    folder = place / f"gpulayer-test-{uuid.uuid4().hex[:8]}"
    try:
        folder.mkdir()
    except OSError:
        return None
    for name in _LIMITS:
        if (folder / name).exists():
            (folder / name).write_text(str(size_bytes))
            return folder
    folder.rmdir()
    return None


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except OSError:  # its last process is just ending
        return False
    return True
