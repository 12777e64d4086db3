"""What an agent is started with."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Options:
    """What an agent is started with."""

    data: Path
    name: str
    slots: int
    python: str
    control_plane: Path | None = None  # its data folder, where that is on this machine
    agent_argv: list[str] = field(default_factory=list[str])
    local: bool = False
    portable: bool = False
    warm: int = 1
    reserve_bytes: int = 1 << 30
    cache_bytes: int | None = None  # of blobs that are kept; None: `gpulayer.source.cache.default_limit`
    region: str = ""
    zone: str = ""
    labels: dict[str, str] = field(default_factory=dict[str, str])
