"""What is known of frameworks, on disk: `probes.json` in the worker's data folder."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from gpulayer.protocol.endpoint import write_private
from gpulayer_worker.probes.outcomes import Results
from gpulayer_worker.probes.packages import Packages

log = logging.getLogger("gpulayer.worker")


class Known(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Owned by one `Probes`, which alone changes it."""

    packages: Packages | None = None
    results: dict[str, Results] = {}  # by framework


def load(data: Path | None) -> Known:
    """What was saved; nothing where there is no file, or one that can't be read."""
    if data is None:
        return Known()
    path = data / "probes.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Known)
    except FileNotFoundError:
        return Known()
    except (OSError, msgspec.DecodeError) as error:
        log.warning("%s can't be read, so that frameworks are probed again: %s", path, error)
        return Known()


def save(data: Path | None, known: Known) -> None:
    """For the next start; where that fails, the next start probes again."""
    if data is None:
        return
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(data / "probes.json", msgspec.json.encode(known))
    except OSError as error:
        log.warning("what probes found can't be saved: %s", error)
