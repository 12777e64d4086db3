"""The notebook's folder, and its way to the control plane."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gpulayer.client.errors import ControlPlaneError, GpulayerError, RequestRefused
from gpulayer.notebook.beside import store_beside
from gpulayer.notebook.transfer import PAUSES_S, Away, check, open_client, told
from gpulayer.notebook.words import size
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

if TYPE_CHECKING:
    import httpx

_LIMITS = Limits()
_TOLD_BYTES = 1_000_000  # of a smaller upload nobody sees how far it is
_BAR_LETTERS = 8
_NO_NAMES: Mapping[str, object] = {}


def notebook_path(names: Mapping[str, object] = _NO_NAMES) -> Path | None:
    """The notebook's own path, where the front end told it: see `_notebook`."""
    path = _notebook(names)
    return Path(path) if path else None


def _notebook(names: Mapping[str, object]) -> str:
    """Jupyter tells the path in a kernel's environment; VS Code in a variable among the notebook's `names`."""
    for path in (os.environ.get("JPY_SESSION_NAME"), names.get("__vsc_ipynb_file__")):
        if isinstance(path, str) and path.endswith(".ipynb") and os.path.isabs(path) and os.path.exists(path):
            return path
    return ""


class SourceRefused(GpulayerError):
    """The folder can't travel as it is: why, and what to do."""


class Source:
    """Scans the folder for each cell, and sends what the control plane lacks."""

    def __init__(self, data: Path | None = None, names: Mapping[str, object] = _NO_NAMES) -> None:
        """`data` is where digests are remembered and the control plane's address is found; by default this user's.

        `names`: the notebook's, see `notebook_path`.
        """
        self._data = data or data_folder()
        self._names = names
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

    def root(self) -> str:
        """The notebook's folder."""
        return os.path.dirname(_notebook(self._names)) or os.getcwd()

    def scan(
        self,
        folder: str | None = None,
        *,
        include: tuple[str, ...] = (),
        exclude: tuple[str, ...] = (),
        limits: Limits = _LIMITS,
    ) -> Bundle:
        """The notebook's folder as a bundle, or the one that a person named: see `scan`. Raises `SourceRefused`."""
        root = os.path.expanduser(folder) if folder else self.root()
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

    def send(self, bundle: Bundle, endpoint: Endpoint, tell: Callable[[str], None]) -> str:
        """Send the blobs that lack, and the manifest; says what was sent: 'sent 3 of 214 files, 41 kB'.

        Where the connection breaks, or the control plane is started again meanwhile, only what lacks then is sent; the
        line that `tell` shows says so.

        Raises `RequestRefused`, `SourceRefused` for a file that changed meanwhile, `ControlPlaneError` for one that
        stays away.
        """
        import httpx  # not at import: most cells send nothing

        moves = read_endpoint(self._data) == endpoint  # it may come back under another address
        for number, pause_s in enumerate((*PAUSES_S, None), 2):
            try:
                sent = self._send(bundle, endpoint, tell, self._data / "blobs" if moves else None)
                self._sent = bundle.manifest
                return sent
            except SourceError as error:
                raise SourceRefused(str(error)) from error
            except (httpx.HTTPError, Away) as error:
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
        return ""

    def _send(self, bundle: Bundle, endpoint: Endpoint, tell: Callable[[str], None], beside: Path | None) -> str:
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
                raise SourceRefused(f"{len(missing)} files did not arrive; run the cell again")
        return sent

    def _guess(self, manifest: Manifest) -> list[str] | None:
        """What a control plane lacks that had all of the bundle before; None where only it can tell."""
        if self._sent is None:
            return None
        had = {"", *(entry.sha256 for entry in self._sent.files)}  # '' is an empty folder's
        return list(dict.fromkeys(entry.sha256 for entry in manifest.files if entry.sha256 not in had)) or None


def _sent(manifest: Manifest, missing: list[str]) -> str:
    sizes = {entry.sha256: entry.size for entry in manifest.files}
    sent_bytes = sum(sizes[digest] for digest in missing)
    return f"sent {len(missing)} of {len(manifest.files)} files, {size(sent_bytes)}"


def _announce(client: httpx.Client, bundle: Bundle) -> list[str]:
    answer = client.post("/v1/bundles", content=bundle.manifest.to_bytes())
    check(answer)
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
    last = manifest.digest, manifest.to_bytes()
    compress = worth_compressing(total_bytes, str(client.base_url))
    here = ((digest, bundle.contents.get(digest) or bundle.source_of[digest]) for digest in missing)
    pack = iter_pack([*here, last], compress=compress)
    # Where the length is known it is told: chunks cost the reader half as much again.
    length = plain_pack_bytes([*(sizes[digest] for digest in missing), len(manifest.to_bytes())])
    answer = client.post(
        "/v1/blobs",
        params={"bundle": manifest.digest} | ({"near": near.digest} if near else {}),
        content=pack if total_bytes < _TOLD_BYTES else told(pack, total_bytes, tell, line, _bar),
        headers={} if compress else {"Content-Length": str(length)},
    )
    check(answer)
    return answer.json()["missing"]


def _bar(sent_bytes: int, total_bytes: int) -> str:
    """How far an upload is, in bytes that travel: fewer than the files', where they are compressed."""
    full = min(_BAR_LETTERS, _BAR_LETTERS * sent_bytes // total_bytes)
    bar = "▓" * full + "░" * (_BAR_LETTERS - full)
    return f"{bar} {sent_bytes / 1e6:.0f} of at most {total_bytes / 1e6:.0f} MB"
