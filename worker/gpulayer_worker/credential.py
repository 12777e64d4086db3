"""A worker's own credential, where it has one: it got that for a join token, from a control plane anywhere."""

from __future__ import annotations

from pathlib import Path

import msgspec

from gpulayer.protocol.endpoint import Endpoint, plain_address
from gpulayer.protocol.types import Struct

GONE_S = 15.0
"""A control plane notices by then that a connection of this worker is of the past."""

LINE_AGAIN = "paste the whole join line, as it was shown"


class JoinError(RuntimeError):
    """This worker does not come in: one line that says why and what to do.

    `code` is the command's exit code. `answered` is False where the control plane may have done what it was asked,
    `ended` is True where it knows the token, and that is good for nothing any more.
    """

    def __init__(self, text: str, *, code: int = 1, answered: bool = True, ended: bool = False):
        super().__init__(text)
        self.code = code
        self.answered = answered
        self.ended = ended


class Credential(Struct, frozen=True, kw_only=True):
    """What `credential.json` in the worker's data folder holds (mode 0600): where it belongs, and what lets it in."""

    url: str
    credential: str
    fingerprint: str = ""  # of the join line; '': the system's trust decides
    certificate: str = ""  # the one that has it, as PEM: no other is trusted

    def endpoint(self) -> Endpoint:
        """The same, as connections take it."""
        return Endpoint(
            url=self.url,
            token=self.credential,
            pid=0,
            version="",
            fingerprint=self.fingerprint,
            certificate=self.certificate,
        )


def read_credential(data: Path) -> Credential | None:
    """The credential in a worker's data folder, None where there is none."""
    try:
        return msgspec.json.decode((data / "credential.json").read_bytes(), type=Credential)
    except (FileNotFoundError, NotADirectoryError, msgspec.MsgspecError):
        return None


def joined_endpoint(data: Path) -> Endpoint | None:
    """Where a worker that has joined finds its control plane, as its file says now."""
    credential = read_credential(data)
    return credential.endpoint() if credential is not None else None


def address(url: str) -> str:
    """A control plane's address in its plain form. Raises `JoinError`."""
    try:
        return plain_address(url)
    except ValueError as error:
        raise JoinError(f"{error}; {LINE_AGAIN}", code=2) from None
