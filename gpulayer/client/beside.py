"""A large upload to a control plane whose data folder is on this machine: its blobs are stored where they belong.

By HTTP the same bytes would be read, copied five times and hashed once more by a process that serves everybody.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpulayer.client.errors import RequestRefused
from gpulayer.protocol.types import Problem
from gpulayer.source import Bundle
from gpulayer.source.blobs import Blobs
from gpulayer.source.pack import file_chunks

_THREADS = 2

WORTH_BYTES = 1_000_000
"""Less goes by HTTP: one request brings it and the manifest."""


def store_beside(folder: Path, bundle: Bundle, missing: list[str]) -> bool:
    """Store the blobs that lack in the control plane's own `folder`; whether that was worth it, and could be done.

    Raises `SourceChanged` for a file that changed meanwhile, `RequestRefused` where the disk is full: what came before
    stays.
    """
    sizes = {entry.sha256: entry.size for entry in bundle.manifest.files}
    if sum(sizes[digest] for digest in missing) < WORTH_BYTES:
        return False
    try:
        blobs = Blobs(folder)
    except OSError:
        return False  # not this user's to write: the control plane does it
    try:
        with ThreadPoolExecutor(_THREADS) as pool:  # the system takes their bytes side by side
            parts = [missing[number::_THREADS] for number in range(_THREADS)]
            list(pool.map(lambda part: blobs.take(_read(bundle, part, sizes)), parts))
    except OSError as error:
        title = "the control plane can't store the source"
        raise RequestRefused(Problem(status=507, code="disk", title=title, detail=str(error))) from error
    return True


def _read(bundle: Bundle, missing: list[str], sizes: dict[str, int]) -> Iterator[tuple[str, int, Iterable[bytes]]]:
    for digest in missing:
        content = bundle.contents.get(digest)
        chunks = file_chunks(digest, bundle.source_of[digest]) if content is None else (content,)
        yield digest, sizes[digest], chunks
