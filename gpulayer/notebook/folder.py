"""The notebook's folder, and its way to the control plane."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from gpulayer.client.errors import ControlPlaneError, GpulayerError, RequestRefused
from gpulayer.protocol.endpoint import Endpoint, data_folder
from gpulayer.protocol.types import Problem
from gpulayer.source import Bundle, DigestCache, SourceError, scan


def notebook_path() -> Path | None:
    """The notebook's own path, where the front end told it."""
    named = os.environ.get("JPY_SESSION_NAME") or ""
    path = Path(named)
    return path if named.endswith(".ipynb") and path.is_absolute() and path.exists() else None


class SourceRefused(GpulayerError):
    """The folder can't travel as it is: why, and what to do."""


class Source:
    """Scans the folder for each cell, and sends what the control plane lacks."""

    def __init__(self) -> None:
        self._last: Bundle | None = None
        cache = data_folder() / "digests"
        try:
            cache.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._cache = DigestCache(cache)
        except OSError:
            self._cache = DigestCache(None)  # no disk to remember on: every file is read once per kernel

    def scan(self, folder: str | None = None) -> Bundle:
        """The notebook's folder as a bundle, or the one that a person named. Raises `SourceRefused`."""
        path = notebook_path()
        root = Path(folder).expanduser() if folder else path.parent if path else Path.cwd()
        known = len(self._cache)
        try:
            bundle = scan(root, cache=self._cache, explicit=folder is not None, previous=self._last)
        except SourceError as error:
            raise SourceRefused(str(error)) from error
        self._last = bundle
        if len(self._cache) != known:
            self._cache.save()
        return bundle

    def send(self, bundle: Bundle, endpoint: Endpoint, tell: Callable[[str], None]) -> None:
        """Send the manifest and the blobs that lack.

        Raises `RequestRefused`, `SourceRefused` for a file that changed meanwhile, `ControlPlaneError`.
        """
        import httpx  # not at import: most cells send nothing

        try:
            self._send(bundle, endpoint, tell)
        except SourceError as error:
            raise SourceRefused(str(error)) from error
        except httpx.HTTPError as error:
            text = f"the control plane went away while the files were sent ({error}); run the cell again"
            raise ControlPlaneError(text) from error

    def _send(self, bundle: Bundle, endpoint: Endpoint, tell: Callable[[str], None]) -> None:
        import httpx

        from gpulayer.source import iter_pack

        headers = {"Authorization": f"Bearer {endpoint.token}"}
        timeout = httpx.Timeout(30.0, read=300.0, write=300.0)
        # without TLS there are no certificates to load, which takes longer than most uploads
        options = {"base_url": endpoint.url, "verify": endpoint.url.startswith("https"), "trust_env": False}
        with httpx.Client(headers=headers, timeout=timeout, **options) as client:
            missing = self._announce(client, bundle)
            if not missing:
                return
            files = f"{len(missing)} of {len(bundle.manifest.files)} files"
            tell(f"◐ sending {files}")
            pack = iter_pack((digest, bundle.source_of[digest]) for digest in missing)
            answer = client.post("/v1/blobs", content=pack)
            _check(answer)
            still = self._announce(client, bundle)
            if still:
                raise SourceRefused(f"{len(still)} files did not arrive; run the cell again")

    def _announce(self, client: object, bundle: Bundle) -> list[str]:
        answer = client.post("/v1/bundles", content=bundle.manifest.to_bytes())  # type: ignore[attr-defined]
        _check(answer)
        return answer.json()["missing"]


def _check(answer: object) -> None:
    if answer.status_code < 400:  # type: ignore[attr-defined]
        return
    import msgspec

    raise RequestRefused(msgspec.json.decode(answer.content, type=Problem))  # type: ignore[attr-defined]
