"""Where the control plane of this user and machine is found: `endpoint.json` in the data folder."""

from __future__ import annotations

import os
import re
import urllib.parse
from pathlib import Path

import msgspec

from gpulayer.protocol.places import REMOTE, data_folder, machine_id, without_secrets
from gpulayer.protocol.types import Struct

__all__ = [
    "REMOTE",
    "Endpoint",
    "data_folder",
    "is_token",
    "machine_id",
    "on_loopback",
    "plain_address",
    "read_endpoint",
    "without_secrets",
    "write_private",
]

_LOOPBACK = re.compile(r"127(\.\d{1,3}){3}")


class Endpoint(Struct, frozen=True, kw_only=True):
    """An address with its credential. The file is mode 0600; the token goes into no environment, argv or log."""

    url: str
    token: str
    pid: int
    version: str
    epoch: int = 0
    fingerprint: str = ""  # of the certificate that an https address must present, see `gpulayer.protocol.pin`
    certificate: str = ""  # that certificate as PEM, once it was compared: the only one that is trusted


def read_endpoint(folder: Path) -> Endpoint | None:
    """The endpoint that a data folder names, or None where there is none (or one half-written by an older tool)."""
    try:
        return msgspec.json.decode((folder / "endpoint.json").read_bytes(), type=Endpoint)
    except (FileNotFoundError, NotADirectoryError, msgspec.MsgspecError):
        return None


def plain_address(url: str) -> str:
    """A control plane's address in its plain form. Raises ValueError that says what is wrong, without any secret."""
    shown = repr(re.split(r"[?#]", url)[0].rpartition("@")[2][:200])  # without what may be a secret
    try:
        parts = urllib.parse.urlsplit(url.strip())
        port = parts.port
        (parts.hostname or "").encode("idna")  # as it is looked up: some letters, and lengths, no name can have
    except ValueError as error:
        why = "no host has such a name" if isinstance(error, UnicodeError) else error
        raise ValueError(f"{shown} is not an address: {why}") from None
    wrong = parts.query or parts.fragment or "@" in parts.netloc or not parts.hostname or port == 0
    if parts.scheme not in ("http", "https") or wrong or not url.strip().isprintable() or " " in url.strip():
        raise ValueError(
            f"{shown} is not an address such as https://HOST:PORT or https://HOST/PATH, with nothing else in it"
        )
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))


def is_token(text: str) -> bool:
    """Whether this may be a token: what is none goes into no request, whose error would show it."""
    return bool(text) and text.isascii() and text.isprintable() and " " not in text


def on_loopback(url: str) -> bool:
    """Whether an address is of this machine itself: there no proxy is used, elsewhere the environment's."""
    host = urllib.parse.urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or _LOOPBACK.fullmatch(host) is not None


def write_private(path: Path, data: bytes, *, durable: bool = False) -> None:
    """Write a file of mode 0600, whole or not at all. `durable`: it is there after a power cut, too."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
