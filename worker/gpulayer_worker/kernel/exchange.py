"""Values that are there before a cell, and values that are left after it, by way of files."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from typing import Any

from .request import Request

MOST_BYTES = 4 * 1024**3 - 65_536  # what travels in one piece


class Exchange:
    """Reads and writes the files of named values. Owned by the kernel, used by its main thread."""

    def __init__(self, codec: Callable[[], Any], reach: Callable[[str], None]) -> None:
        """`codec` loads the module `named`: most cells need nothing of it."""
        self._codec = codec
        self._reach = reach

    def take(self, request: Request) -> dict[str, Any]:
        """The values that `request` begins with, by name.

        Raises OSError, or ValueError (the codec's ValueDamaged) where they can't be had; one line says why.
        """
        if not request.inputs:
            return {}
        named, place = self._codec(), request.inputs
        with open(place["path"], "rb", buffering=0) as file:
            if os.fstat(file.fileno()).st_size < place["offset"] + place["size"]:
                raise ValueError(f"the values of --in are cut short in {place['path']}")
            file.seek(place["offset"])
            parts = named.read(file, place["size"])
        return named.values_of(parts)

    def leave(self, request: Request, variables: dict[str, Any]) -> dict[str, Any]:
        """Writes the values that `request` wants of `variables`; the digest and the size of the file.

        The file is there whole or not at all. Raises NameError, TypeError (the codec's ValueRefused), ValueError or
        OSError; one line says what is wrong.
        """
        named, names = self._codec(), request.outputs["names"]
        for name in names:
            if name not in variables:
                near = named.nearest(name, variables)
                raise NameError(f"--out {name}: the cell ended without a variable of this name{near}")
        try:
            framed = named.Framed({name: variables[name] for name in names})
        except TypeError as refused:
            raise type(refused)(f"--out {refused}") from refused
        path, size = request.outputs["path"], framed.size_bytes
        self._check_room(os.path.dirname(path), size, request.reserve_bytes)
        sha256 = hashlib.sha256()
        new = f"{path}.new"
        try:
            with open(new, "wb", buffering=0, opener=_private) as file:
                for piece in framed.pieces():
                    sha256.update(piece)
                    _write_all(file, piece)
            self._reach("kernel.values-written")
            os.replace(new, path)
        except BaseException:
            if os.path.exists(new):
                os.unlink(new)
            raise
        return {"sha256": sha256.hexdigest(), "size": size}

    def _check_room(self, folder: str, size: int, reserve_bytes: int) -> None:
        if size > MOST_BYTES:
            raise ValueError(f"--out: the values have {size / 1e9:.1f} GB, at most {MOST_BYTES / 1e9:.1f} GB travel")
        free = shutil.disk_usage(folder).free - reserve_bytes
        if size > free:
            have, want = max(0, free) / 1e6, size / 1e6
            raise OSError(
                f"--out: the values need {want:,.0f} MB on the worker's disk, which has {have:,.0f} MB to spare"
            )


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _write_all(file: Any, piece: memoryview) -> None:
    while piece:
        piece = piece[file.write(piece) :]
