"""A folder's way to the control plane: looked through, and what lacks there sent."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpulayer.client.beside import store_beside
from gpulayer.client.errors import ControlPlaneError, GpulayerError, RequestRefused
from gpulayer.client.transfer import PAUSES_S, Away, HowFar, Tell, bar, check, open_client, told
from gpulayer.protocol.endpoint import Endpoint, data_folder, read_endpoint
from gpulayer.protocol.localdisk import network_filesystem
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
from gpulayer.words import size

if TYPE_CHECKING:
    import httpx

LIMITS = Limits()
_TOLD_BYTES = 1_000_000  # of a smaller upload nobody sees how far it is
_LARGE_BYTES = 8 << 20  # from here on a file travels by itself: `gpulayer.source.upload.LARGE_BYTES`, without httpx


class SourceRefused(GpulayerError):
    """The folder can't travel as it is: why, and what to do."""


@dataclass(frozen=True, kw_only=True)
class Sent:
    """What of a bundle travelled."""

    files: int  # in the bundle
    changed: int  # of them that the control plane lacked
    sent_bytes: int

    def __str__(self) -> str:
        return f"sent {self.changed} of {self.files} files, {size(self.sent_bytes)}"


class Sender:
    """Looks through folders, and sends what the control plane lacks. Not for two threads."""

    def __init__(self, data: Path | None = None, *, again: str = "run it again") -> None:
        """`data` is where digests are remembered and the control plane's address is found; by default this user's.

        `again`: what a person does when it went wrong.
        """
        self._data = data or data_folder()
        self._again = again
        self._last: Bundle | None = None
        self._sent: Manifest | None = None  # the last one that a control plane had all of
        cache = self._data / "digests"
        if network_filesystem(self._data):  # no control plane will start there: nothing is made
            self.cache = DigestCache(None)
            return
        try:
            cache.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.cache = DigestCache(cache)
        except OSError:
            self.cache = DigestCache(None)  # no disk to remember on: every file is read once per process

    def remember(self) -> None:
        """Keep the digests that were taken for the next process."""
        with contextlib.suppress(OSError):  # a full disk: what changed is read again by the next process
            self.cache.save()

    def scan(
        self,
        root: str,
        *,
        include: tuple[str, ...] = (),
        exclude: tuple[str, ...] = (),
        limits: Limits = LIMITS,
        explicit: bool = True,
        notebooks: bool = False,
    ) -> Bundle:
        """A folder as a bundle: see `gpulayer.source.scan`. Raises `SourceRefused`."""
        try:
            bundle = scan(
                root,
                include=include,
                exclude=exclude,
                limits=limits,
                cache=self.cache,
                explicit=explicit,
                notebooks=notebooks,
                previous=self._last,
            )
        except SourceError as error:
            raise SourceRefused(str(error)) from error
        if bundle is not self._last:
            self._last = bundle
            self.remember()
        return bundle

    def send(self, bundle: Bundle, endpoint: Endpoint, tell: Tell) -> Sent:
        """Send the blobs that lack, and the manifest.

        Where the connection breaks, or the control plane is started again meanwhile, only what lacks then is sent; the
        line that `tell` shows says so.

        Raises `RequestRefused`, `SourceRefused` for a file that changed meanwhile, `ControlPlaneError` for one that
        stays away.
        """
        import httpx  # not at import: most cells send nothing

        moves = read_endpoint(self._data) == endpoint  # it may come back under another address
        number, pauses_s = 1, [*PAUSES_S]
        while True:
            number += 1
            try:
                sent = self._send(bundle, endpoint, tell, self._data / "blobs" if moves else None)
                self._sent = bundle.manifest
                return sent
            except SourceError as error:
                raise SourceRefused(str(error)) from error
            except (httpx.HTTPError, Away) as error:
                self._sent = None
                text = f"the control plane went away while the files were sent ({error})"
                if not pauses_s:
                    raise ControlPlaneError(f"{text}; {self._again}") from error
                tell(f"◌ {text}; sending the rest in {pauses_s[0]:g} s, try {number} of {len(PAUSES_S) + 1}")
            except RequestRefused as error:
                # After a break it may be started again, with another token, which its file does not say yet.
                if error.problem.status != 401 or number == 2 or not moves or not pauses_s:
                    raise
            time.sleep(pauses_s.pop(0))  # a connection has no news of who comes back
            if moves:
                endpoint = read_endpoint(self._data) or endpoint

    def _send(self, bundle: Bundle, endpoint: Endpoint, tell: Tell, beside: Path | None) -> Sent:
        """`beside`: where the control plane's blobs lie, if its data folder is here."""
        with open_client(endpoint) as client:
            missing = self._guess(bundle.manifest)
            if missing is None:
                missing = _announce(client, bundle)
            sent = _sent(bundle.manifest, missing)
            if beside is not None and missing and store_beside(beside, bundle, missing):
                missing = _announce(client, bundle)
            for _ in range(2):  # again for what was guessed wrong
                if missing:
                    missing = _upload(client, bundle, missing, self._sent, tell)
            if missing:
                raise SourceRefused(f"{len(missing)} files did not arrive; {self._again}")
        return sent

    def _guess(self, manifest: Manifest) -> list[str] | None:
        """What a control plane lacks that had all of the bundle before; None where only it can tell."""
        if self._sent is None:
            return None
        had = {"", *(entry.sha256 for entry in self._sent.files)}  # '' is an empty folder's
        return list(dict.fromkeys(entry.sha256 for entry in manifest.files if entry.sha256 not in had)) or None


def _sent(manifest: Manifest, missing: list[str]) -> Sent:
    sizes = {entry.sha256: entry.size for entry in manifest.files}
    return Sent(files=len(manifest.files), changed=len(missing), sent_bytes=sum(sizes[digest] for digest in missing))


def _announce(client: httpx.Client, bundle: Bundle) -> list[str]:
    answer = client.post("/v1/bundles", content=bundle.manifest.to_bytes())
    check(answer)
    return answer.json()["missing"]


def _upload(client: httpx.Client, bundle: Bundle, missing: list[str], near: Manifest | None, tell: Tell) -> list[str]:
    """Send large blobs one by one, the others and the manifest in one request; what lacks then."""
    sizes = {entry.sha256: entry.size for entry in bundle.manifest.files}
    total_bytes = sum(sizes[digest] for digest in missing)
    line = f"◐ sending {len(missing)} of {len(bundle.manifest.files)} files"
    tell(line)
    small = [digest for digest in missing if sizes[digest] < _LARGE_BYTES]
    if len(small) < len(missing):
        _upload_large(client, bundle, {each: sizes[each] for each in missing if each not in set(small)}, tell, line)
        if not small:
            return _announce(client, bundle)
        total_bytes = sum(sizes[digest] for digest in small)
    return _upload_pack(client, bundle, {digest: sizes[digest] for digest in small}, total_bytes, near, tell, line)


def _upload_large(client: httpx.Client, bundle: Bundle, sizes: dict[str, int], tell: Tell, line: str) -> None:
    import httpx

    from gpulayer.source.upload import send_blob

    total_bytes, before = sum(sizes.values()), 0
    for digest, size_bytes in sizes.items():

        def say(sent_bytes: int, before: int = before) -> None:
            tell(HowFar.of(line, before + sent_bytes, total_bytes, bar))

        try:
            send_blob(client, digest, bundle.source_of[digest], size_bytes, tell=say)
        except httpx.HTTPStatusError as error:
            error.response.read()
            check(error.response)
            raise
        before += size_bytes


def _upload_pack(
    client: httpx.Client,
    bundle: Bundle,
    sizes: dict[str, int],
    total_bytes: int,
    near: Manifest | None,
    tell: Tell,
    line: str,
) -> list[str]:
    manifest = bundle.manifest
    last = manifest.digest, manifest.to_bytes()
    compress = worth_compressing(total_bytes, str(client.base_url))
    here = ((digest, bundle.contents.get(digest) or bundle.source_of[digest]) for digest in sizes)
    pack = iter_pack([*here, last], compress=compress)
    # Where the length is known it is told: chunks cost the reader half as much again.
    length = plain_pack_bytes([*sizes.values(), len(manifest.to_bytes())])
    answer = client.post(
        "/v1/blobs",
        params={"bundle": manifest.digest} | ({"near": near.digest} if near else {}),
        content=pack if total_bytes < _TOLD_BYTES else told(pack, total_bytes, tell, line, bar),
        headers={} if compress else {"Content-Length": str(length)},
    )
    check(answer)
    return answer.json()["missing"]
