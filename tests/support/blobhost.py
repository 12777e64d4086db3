"""A control plane's blobs, played in memory: what is sent to it is kept, what is asked for is given."""

from __future__ import annotations

import hashlib
import io
import json
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from gpulayer.protocol.endpoint import Endpoint
from gpulayer.source import Manifest, PackError, SourceError, iter_pack, read_pack

TOKEN = "t"


def digest(data: bytes) -> str:
    """Its SHA-256."""
    return hashlib.sha256(data).hexdigest()


class BlobHost:
    """Answers requests without a socket. `break_next` are answers, or exceptions, that come before its own."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.asked: list[str] = []  # methods and paths
        self.break_next: list[httpx.Response | Exception] = []
        self.partial: dict[str, bytes] = {}  # of large blobs that are on their way
        self.tie: Any = SimpleNamespace(endpoint=Endpoint(url="http://127.0.0.1:9", token=TOKEN, pid=1, version="0"))

    def client(self, *_: object) -> httpx.Client:
        """A client of it."""
        headers = {"Authorization": f"Bearer {self.tie.endpoint.token}"}
        transport = httpx.MockTransport(self._answer)
        return httpx.Client(base_url=self.tie.endpoint.url, headers=headers, transport=transport)

    def serve(self, monkeypatch: pytest.MonkeyPatch, *modules: str) -> BlobHost:
        """Have these modules' `open_client` make clients of this."""
        for module in modules:
            monkeypatch.setattr(f"{module}.open_client", self.client)
        return self

    def put(self, data: bytes) -> str:
        """Keep bytes; their digest."""
        self.blobs[digest(data)] = data
        return digest(data)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        body = request.read()
        self.asked.append(f"{request.method} {request.url.path}")
        if self.break_next:
            broken = self.break_next.pop(0)
            if isinstance(broken, Exception):
                raise broken
            return broken
        if request.headers["Authorization"] != f"Bearer {TOKEN}":
            return problem(401, "unauthorized")
        if request.url.path.startswith("/v1/uploads/"):
            return self._chunk(request, body)
        return self._own_answer(request.method, request.url.path, body)

    def _chunk(self, request: httpx.Request, body: bytes) -> httpx.Response:
        name, size = request.url.path.rpartition("/")[2], int(request.url.params["size"])
        here = self.blobs.get(name, self.partial.get(name, b""))
        if request.method == "PATCH":
            if int(request.headers["Upload-Offset"]) != len(here):
                return httpx.Response(409, headers={"Upload-Offset": str(len(here))})
            here = self.partial[name] = here + body
            if len(here) == size and digest(self.partial.pop(name)) != name:
                return problem(422, "digest")
            if len(here) == size:
                self.put(here)
        return httpx.Response(200, headers={"Upload-Offset": str(len(here))})

    def _own_answer(self, method: str, path: str, body: bytes) -> httpx.Response:
        try:
            if path == "/v1/blobs":
                return self._take(body)
            if path == "/v1/bundles":
                return self._announced(body)
            if path == "/v1/blobs/fetch":
                wanted = [(name, io.BytesIO(self.blobs[name])) for name in json.loads(body)]
                return httpx.Response(200, content=b"".join(iter_pack(wanted, verify=False)))
            data = self.blobs[path.removeprefix("/v1/blobs/")]
        except (SourceError, PackError) as error:
            return problem(400, "bad_source", str(error))
        except KeyError:
            return problem(404, "no_such_blob")
        length = {"Content-Length": str(len(data))}
        return httpx.Response(200, headers=length, content=b"" if method == "HEAD" else data)

    def _take(self, body: bytes) -> httpx.Response:
        stored = 0
        for name, _, chunks in read_pack(io.BytesIO(body)):
            self.blobs[name] = b"".join(chunks)
            stored += 1
        return httpx.Response(200, json={"stored": stored})

    def _announced(self, body: bytes) -> httpx.Response:
        manifest = Manifest.from_bytes(body)
        missing = [entry.sha256 for entry in manifest.files if entry.sha256 not in self.blobs]
        if not missing:
            self.put(body)
        return httpx.Response(200, json={"digest": manifest.digest, "missing": missing})


def problem(status: int, code: str, detail: str = "") -> httpx.Response:
    """An answer that refuses."""
    return httpx.Response(status, json={"status": status, "code": code, "title": code, "detail": detail})
