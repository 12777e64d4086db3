"""Where the control plane is that this Jupyter server uses: one in this process, another one's, or a remote one."""

from __future__ import annotations

import logging
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from gpulayer._version import __version__
from gpulayer.protocol.endpoint import Endpoint, write_private
from gpulayer.protocol.pin import read_fingerprint, unencrypted

log = logging.getLogger("gpulayer.jupyter")

State = Literal["holds", "attached", "remote", "starting", "failed"]


@dataclass(frozen=True, kw_only=True)
class Status:
    """How this Jupyter server stands to the control plane."""

    state: State
    text: str  # one line for people
    data: str  # the data folder
    url: str | None = None  # of a remote control plane


class Place(Protocol):
    """Names the control plane. Any thread may ask."""

    def endpoint(self) -> Endpoint | None:
        """Its address and token, read anew: it may have moved. None while nobody says where it is."""
        ...

    def status(self) -> Status:
        """How this server stands to it."""
        ...


class Remote:
    """A control plane elsewhere, by its address, a token, and its certificate's fingerprint."""

    def __init__(self, url: str, token_file: Path | None, data: Path, *, token: str = "", fingerprint: str = ""):
        """A control plane that is not asked yet.

        Arguments:
            url: it may have a path, such as that of another Jupyter server: `https://hub/user/x/gpulayer`.
            token_file: holds the token, and is read anew each time; `token` counts where there is none.
            fingerprint: of the certificate that must answer there; '': the system's trust decides.
        """
        self._url = url.rstrip("/")
        self._token_file = token_file
        self._given_token = token
        self._fingerprint, self._wrong = "", ""
        try:
            self._fingerprint = read_fingerprint(fingerprint) if fingerprint else ""
        except ValueError as error:
            self._wrong = f"{error}; name it with GpulayerApp.fingerprint"
        self._data = data
        self._shared: Path | None = None
        self._written: Endpoint | None = None

    def endpoint(self) -> Endpoint | None:
        """The address with the token that the file holds now."""
        if self._wrong:
            return None  # `status` says why
        try:
            token = self._token()
        except OSError:
            return None  # `status` says why
        endpoint = Endpoint(
            url=self._url, token=token, pid=os.getpid(), version=__version__, fingerprint=self._fingerprint
        )
        if self._shared is not None and endpoint != self._written:
            self._tell_kernels(self._shared, endpoint)
        return endpoint

    def _tell_kernels(self, folder: Path, endpoint: Endpoint) -> None:
        self._written = endpoint
        try:
            write_private(folder / "endpoint.json", msgspec.json.encode(endpoint))
        except OSError as error:
            log.error("kernels do not hear of the control plane: %s/endpoint.json: %s", folder, error.strerror)

    def share(self, runtime: Path) -> Path:
        """Keep an `endpoint.json` for this server's kernels, in the folder that is returned. Raises OSError."""
        self._shared = runtime / f"gpulayer-{os.getpid()}"
        self._shared.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.endpoint()
        return self._shared

    def unshare(self) -> None:
        """Take it away again."""
        shared, self._shared = self._shared, None
        if shared is not None:
            shutil.rmtree(shared, ignore_errors=True)

    def status(self) -> Status:
        """Remote, or why it can't be used."""
        if self._wrong:
            return Status(state="failed", text=self._wrong, data=str(self._data))
        try:
            self._token()
        except OSError as error:
            text = f"the token for {self._url} can't be read: {self._token_file}: {error.strerror}"
            return Status(state="failed", text=f"{text}; name it with GpulayerApp.token_file", data=str(self._data))
        text = f"uses the control plane at {self._url}"
        if unencrypted(self._url):
            text += ", over plain http: what goes there can be read by anybody on the way"
        if self._token_file is None and not self._given_token:
            text += "; name its token's file with GpulayerApp.token_file"
        return Status(state="remote", text=text, data=str(self._data), url=self._url)

    def _token(self) -> str:
        return self._token_file.read_text(encoding="utf-8").strip() if self._token_file else self._given_token
