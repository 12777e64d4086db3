"""What a person can set of a control plane: `settings.json` in its data folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta
from msgspec.structs import asdict

from gpulayer.protocol.types import Struct
from gpulayer_server.core.state import Settings
from gpulayer_server.datafolder import DataFolderError


class Kept(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much of the past is kept, and how long workers are waited for; None: as `Settings` has it."""

    keep_jobs: Annotated[int, Meta(ge=0)] | None = None  # of those that ended
    keep_days: Annotated[float, Meta(ge=0)] | None = None  # since the end
    keep_results_days: Annotated[float, Meta(ge=0)] | None = None  # of calls; else as `keep_days`
    keep_blobs_bytes: Annotated[int, Meta(ge=0)] | None = None  # of files; what kept jobs name is kept anyway
    lost_after_s: Annotated[float, Meta(ge=2)] | None = None  # out of reach for so long, its tasks with retries move on
    client_away_s: Annotated[float, Meta(ge=0)] | None = None  # after it a map ends whose client did not send the rest


def read_settings(data: Path, flags: Kept | None = None) -> Settings:
    """The settings of a data folder; `flags` go before them. Raises `DataFolderError` for a file that is not right."""
    path = data / "settings.json"
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Kept)
    except FileNotFoundError:
        found = Kept()
    except (OSError, msgspec.MsgspecError) as error:
        names = ", ".join(Kept.__struct_fields__)
        raise DataFolderError(f"{path} can't be read: {error}; it may hold {names}, as JSON") from error
    given = asdict(found) | {name: value for name, value in asdict(flags or Kept()).items() if value is not None}
    return Settings(**{name: value for name, value in given.items() if value is not None})
