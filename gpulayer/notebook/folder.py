"""The notebook's folder, and its way to the control plane."""

from __future__ import annotations

import contextlib
import io
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gpulayer.client.errors import ControlPlaneError, GpulayerError, RequestRefused
from gpulayer.protocol.endpoint import Endpoint, data_folder, read_endpoint
from gpulayer.protocol.localdisk import network_filesystem
from gpulayer.protocol.types import Problem
from gpulayer.source import (
    Bundle,
    DigestCache,
    Limits,
    Manifest,
    SourceError,
    iter_pack,
    plain_pack_bytes,
    scan,
    worth_compressing,
)

if TYPE_CHECKING:
    import httpx

PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
"""Before each further try of an upload that broke: a control plane starts again within a second or two."""

_LIMITS = Limits()
_TOLD_EVERY_S = 0.5
_TOLD_BYTES = 1_000_000  # of a smaller upload nobody sees how far it is
_AWAY = (502, 503, 504)  # a proxy before a control plane that does not answer


def notebook_path() -> Path | None:
    """The notebook's own path, where the front end told it."""
    path = _notebook()
    return Path(path) if path else None


def _notebook() -> str:
    path = os.environ.get("JPY_SESSION_NAME") or ""
    return path if path.endswith(".ipynb") and os.path.isabs(path) and os.path.exists(path) else ""


class SourceRefused(GpulayerError):
    """The folder can't travel as it is: why, and what to do."""


class Source:
    """Scans the folder for each cell, and sends what the control plane lacks."""

    def __init__(self, data: Path | None = None) -> None:
        """`data` is where digests are remembered and the control plane's address is found; by default this user's."""
        self._data = data or data_folder()
        self._last: Bundle | None = None
        self._sent: Manifest | None = None  # the last one that a control plane had all of
        cache = self._data / "digests"
        if network_filesystem(self._data):  # no control plane will start there: nothing is made
            self._cache = DigestCache(None)
            return
        try:
            cache.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._cache = DigestCache(cache)
        except OSError:
            self._cache = DigestCache(None)  # no disk to remember on: every file is read once per kernel

    def scan(
        self,
        folder: str | None = None,
        *,
        include: tuple[str, ...] = (),
        exclude: tuple[str, ...] = (),
        limits: Limits = _LIMITS,
    ) -> Bundle:
        """The notebook's folder as a bundle, or the one that a person named: see `scan`. Raises `SourceRefused`."""
        root = os.path.expanduser(folder) if folder else os.path.dirname(_notebook()) or os.getcwd()
        try:
            bundle = scan(
                root,
                include=include,
                exclude=exclude,
                limits=limits,
                cache=self._cache,
                explicit=folder is not None,
                previous=self._last,
            )
        except SourceError as error:
            raise SourceRefused(str(error)) from error
        if bundle is not self._last:
            self._last = bundle
            with contextlib.suppress(OSError):  # a full disk: what changed is read again by the next kernel
                self._cache.save()
        return bundle

    def send(self, bundle: Bundle, endpoint: Endpoint, tell: Callable[[str], None]) -> None:
        """Send the blobs that lack, and the manifest.

        Where the connection breaks, or the control plane is started again meanwhile, only what lacks then is sent; the
        line that `tell` shows says so.

        Raises `RequestRefused`, `SourceRefused` for a file that changed meanwhile, `ControlPlaneError` for one that
        stays away.
        """
        import httpx  # not at import: most cells send nothing

        moves = read_endpoint(self._data) == endpoint  # it may come back under another address
        for number, pause_s in enumerate((*PAUSES_S, None), 2):
            try:
                self._send(bundle, endpoint, tell)
                self._sent = bundle.manifest
                return
            except SourceError as error:
                raise SourceRefused(str(error)) from error
            except (httpx.HTTPError, _Away) as error:
                self._sent = None
                text = f"the control plane went away while the files were sent ({error})"
                if pause_s is None:
                    raise ControlPlaneError(f"{text}; run the cell again") from error
                tell(f"◌ {text}; sending the rest in {pause_s:g} s, try {number} of {len(PAUSES_S) + 1}")
            except RequestRefused as error:
                # After a break it may be started again, with another token, which its file does not say yet.
                if error.problem.status != 401 or number == 2 or not moves or pause_s is None:
                    raise
            time.sleep(pause_s)  # a connection has no news of who comes back
            if moves:
                endpoint = read_endpoint(self._data) or endpoint

    def _send(self, bundle: Bundle, endpoint: Endpoint, tell: Callable[[str], None]) -> None:
        import httpx

        headers = {"Authorization": f"Bearer {endpoint.token}"}
        timeout = httpx.Timeout(30.0, read=300.0, write=300.0)
        # without TLS there are no certificates to load, which takes longer than most uploads
        options = {"base_url": endpoint.url, "verify": endpoint.url.startswith("https"), "trust_env": False}
        with httpx.Client(headers=headers, timeout=timeout, **options) as client:
            missing = self._guess(bundle.manifest)
            if missing is None:
                missing = _announce(client, bundle)
            for _ in range(2):  # again for what was guessed wrong
                if missing:
                    missing = _upload(client, bundle, missing, self._sent, tell)
            if missing:
                raise SourceRefused(f"{len(missing)} files did not arrive; run the cell again")

    def _guess(self, manifest: Manifest) -> list[str] | None:
        """What a control plane lacks that had all of the bundle before; None where only it can tell."""
        if self._sent is None:
            return None
        had = {"", *(entry.sha256 for entry in self._sent.files)}  # '' is an empty folder's
        return list(dict.fromkeys(entry.sha256 for entry in manifest.files if entry.sha256 not in had)) or None


class _Away(Exception):
    """Somebody answered for a control plane that does not."""


def _announce(client: httpx.Client, bundle: Bundle) -> list[str]:
    answer = client.post("/v1/bundles", content=bundle.manifest.to_bytes())
    _check(answer)
    return answer.json()["missing"]


def _upload(
    client: httpx.Client, bundle: Bundle, missing: list[str], near: Manifest | None, tell: Callable[[str], None]
) -> list[str]:
    """Send blobs and the manifest in one request; what lacks then."""
    manifest = bundle.manifest
    sizes = {entry.sha256: entry.size for entry in manifest.files}
    total_bytes = sum(sizes[digest] for digest in missing)
    line = f"◐ sending {len(missing)} of {len(manifest.files)} files"
    tell(line)
    last = manifest.digest, io.BytesIO(manifest.to_bytes())
    compress = worth_compressing(total_bytes, str(client.base_url))
    pack = iter_pack([*((digest, bundle.source_of[digest]) for digest in missing), last], compress=compress)
    # Where the length is known it is told: chunks cost the reader half as much again.
    length = plain_pack_bytes([*(sizes[digest] for digest in missing), len(manifest.to_bytes())])
    answer = client.post(
        "/v1/blobs",
        params={"bundle": manifest.digest} | ({"near": near.digest} if near else {}),
        content=_told(pack, total_bytes, line, tell),
        headers={} if compress else {"Content-Length": str(length)},
    )
    _check(answer)
    return answer.json()["missing"]


def _told(pack: Iterator[bytes], total_bytes: int, line: str, tell: Callable[[str], None]) -> Iterator[bytes]:
    """The pack; while it goes, people see how far it is (in bytes that travel: fewer, where they are compressed)."""
    sent_bytes = 0
    next_s = time.monotonic() + _TOLD_EVERY_S
    for piece in pack:
        yield piece
        sent_bytes += len(piece)
        if total_bytes >= _TOLD_BYTES and time.monotonic() >= next_s:
            next_s = time.monotonic() + _TOLD_EVERY_S
            tell(f"{line} · {sent_bytes / 1e6:.0f} of at most {total_bytes / 1e6:.0f} MB")


def _check(answer: httpx.Response) -> None:
    if answer.status_code in _AWAY:
        raise _Away(f"{answer.status_code} {answer.reason_phrase}")
    if answer.status_code >= 400:
        import msgspec

        try:
            problem = msgspec.json.decode(answer.content, type=Problem)
        except msgspec.MsgspecError:  # a proxy's page
            text = f"the files were refused: {answer.status_code} {answer.reason_phrase}"
            raise ControlPlaneError(f"{text}, not by a control plane") from None
        raise RequestRefused(problem)
