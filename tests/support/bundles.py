"""A notebook's folder and a control plane that has what is in it, without either: what workspaces are made from."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gpulayer.protocol.endpoint import Endpoint
from gpulayer.source import scan, write_pack
from gpulayer_worker.workspace import Workspaces

ENDPOINT = Endpoint(url="http://127.0.0.1:9", token="token", pid=1, version="0")


class Home:
    """A notebook's folder and a control plane that has what is in it, behind a transport that counts."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        self.folder = folder
        folder.mkdir()
        self.blobs: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.damage: Callable[[bytes], bytes] = lambda data: data
        self.breaks_after: int | None = None  # bytes of a pack's body
        self.url = ENDPOINT.url
        self.codings: list[str] = []
        monkeypatch.setattr(Workspaces, "_client", lambda _: httpx.Client(
            base_url=self.url, transport=httpx.MockTransport(self._answer)))  # fmt: skip

    def write(self, **files: str | bytes) -> str:
        """Change the folder; the digest of what is in it now, which the control plane has."""
        for name, text in files.items():
            (self.folder / f"{name}.py").write_bytes(text if isinstance(text, bytes) else text.encode())
        bundle = scan(self.folder)
        for digest, path in bundle.source_of.items():
            self.blobs[digest] = Path(path).read_bytes()
        self.blobs[bundle.manifest.digest] = bundle.manifest.to_bytes()
        return bundle.manifest.digest

    def remove(self, name: str) -> str:
        """Remove a file; the digest of the folder then."""
        (self.folder / f"{name}.py").unlink()
        return self.write()

    def _answer(self, request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            digest = request.url.path.rpartition("/")[2]
            self.asked.append("manifest")
            return httpx.Response(200, content=self.blobs[digest]) if digest in self.blobs else httpx.Response(404)
        wanted: list[str] = json.loads(request.content)
        self.asked.append(f"{len(wanted)} blobs")
        pack = io.BytesIO()
        folder = self.folder.parent / "packed"
        folder.mkdir(exist_ok=True)
        for digest in wanted:
            (folder / digest).write_bytes(self.blobs[digest])
        self.codings.append(request.url.params.get("coding", ""))
        write_pack([(digest, folder / digest) for digest in wanted], pack, compress=self.codings[-1] == "zstd")
        body = self.damage(pack.getvalue())
        return httpx.Response(200, content=body if self.breaks_after is None else breaking(body[: self.breaks_after]))


def breaking(body: bytes) -> Iterator[bytes]:
    """A body whose connection is reset where it ends."""
    for begin in range(0, len(body), 50_000):
        yield body[begin : begin + 50_000]
    raise httpx.ReadError("Connection reset by peer")


def contents(folder: Path, read: Callable[[Path], Any] = Path.read_text) -> dict[str, Any]:
    """What the files of a folder hold, by name."""
    return {path.name: read(path) for path in folder.iterdir()}


def sha(data: bytes) -> str:
    """A blob's digest."""
    return hashlib.sha256(data).hexdigest()


def quiet(text: str) -> None:
    """Nobody looks at the progress."""
