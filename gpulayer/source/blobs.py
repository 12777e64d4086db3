"""Blobs: bytes by their SHA-256, one file each, in a folder of a control plane or a worker."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path

_DIGEST = re.compile(r"[0-9a-f]{64}")


class BlobError(ValueError):
    """Bytes that are not what their digest says, or a digest that is none."""


class Blobs:
    """A folder of blobs. A blob is there whole or not at all; any number of processes may add."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def path(self, digest: str) -> Path:
        """Where the blob is or would be. Raises `BlobError` for what is no digest."""
        if not _DIGEST.fullmatch(digest):
            raise BlobError(f"not a SHA-256 digest: {digest[:80]!r}")
        return self.folder / digest[:2] / digest

    def __contains__(self, digest: str) -> bool:
        return self.path(digest).exists()

    def missing(self, digests: Iterable[str]) -> list[str]:
        """Those of `digests` that are not here, each once, in order."""
        return [digest for digest in dict.fromkeys(digests) if digest not in self]

    def read(self, digest: str) -> bytes:
        """A small blob's bytes."""
        return self.path(digest).read_bytes()

    def put(self, digest: str, chunks: Iterable[bytes]) -> None:
        """Store a blob; raises `BlobError`, and nothing is kept, when the bytes have another digest."""
        target = self.path(digest)
        target.parent.mkdir(mode=0o700, exist_ok=True)
        hasher = hashlib.sha256()
        fd, name = tempfile.mkstemp(dir=target.parent, prefix=".new-")
        try:
            with os.fdopen(fd, "wb") as file:
                for chunk in chunks:
                    hasher.update(chunk)
                    file.write(chunk)
            if hasher.hexdigest() != digest:
                raise BlobError(f"blob {digest[:12]}…: the bytes that came have digest {hasher.hexdigest()[:12]}…")
            Path(name).replace(target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
