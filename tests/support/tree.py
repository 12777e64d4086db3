"""Folders that live while they are read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def files_under(folder: Path) -> Iterator[Path]:
    """Every file below a folder, no pipe and no socket; what goes away meanwhile is left out (`rglob` would raise)."""
    for top, _, names in os.walk(folder):
        yield from (path for path in (Path(top, name) for name in names) if path.is_file())
