"""Files that results of calls name: into a folder of blobs, and to the control plane."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO

from gpulayer.source import SourceChanged, iter_pack, plain_pack_bytes, worth_compressing
from gpulayer.source.blobs import Blobs
from gpulayer.source.pack import PackFrame
from gpulayer.source.streams import PARTS
from gpulayer_worker.runner.wire import BlobPlace

if TYPE_CHECKING:
    import httpx


def send_pack(client: httpx.Client, files: dict[str, tuple[str, int]]) -> None:
    """Send files (path, size in bytes) by their digests, in one request. Raises as `client` does."""
    sizes = [size for _, size in files.values()]
    compress = worth_compressing(sum(sizes), str(client.base_url))
    pack = iter_pack([(digest, path) for digest, (path, _) in files.items()], compress=compress, verify=False)
    headers = {} if compress else {"Content-Length": str(plain_pack_bytes(sizes))}
    extensions = {} if compress else {PARTS: _parts(files)}
    client.post("/v1/blobs", content=pack, headers=headers, extensions=extensions).raise_for_status()


def _parts(files: dict[str, tuple[str, int]]) -> Iterator[bytes | BinaryIO]:
    """The same pack for who can send files as they are."""
    frame = PackFrame()
    for digest, (path, size) in files.items():
        yield frame.blob(digest, size)
        with _opened(path, size) as file:
            yield file
    yield frame.end()


def _opened(path: str, size: int) -> BinaryIO:
    try:
        file = open(path, "rb", buffering=0)  # noqa: SIM115 whoever asked closes it
    except FileNotFoundError:
        raise SourceChanged(f"{os.path.basename(path)} is gone, which the call left") from None
    if os.fstat(file.fileno()).st_size != size:
        file.close()
        raise SourceChanged(f"{os.path.basename(path)} is not what the call left")
    return file


def take_in(blobs: Blobs, place: BlobPlace) -> None:
    """Let a runner's file be a blob, where it is not one already: a runner may tell of it again.

    Raises SourceChanged, OSError.
    """
    try:
        if place.offset or os.stat(place.path).st_size != place.size:
            raise SourceChanged(f"{os.path.basename(place.path)} is not what the call left")
    except FileNotFoundError:
        if blobs.missing({place.digest: place.size}):
            raise SourceChanged(f"{os.path.basename(place.path)} is gone, which the call left") from None
        return
    try:
        blobs.adopt(place.digest, place.path)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        copy = f"{blobs.folder}/new/{os.getpid()}-{threading.get_ident()}-{place.digest[:16]}"
        shutil.copyfile(place.path, copy)
        blobs.adopt(place.digest, copy)
        os.unlink(place.path)
