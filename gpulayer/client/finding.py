"""Where the control plane of a client is: found before its first request, and again after each break."""

from __future__ import annotations

from pathlib import Path

from gpulayer.client.api import Find
from gpulayer.client.embedded import find_or_start
from gpulayer.client.errors import ControlPlaneError
from gpulayer.client.remote import endpoint_of, reached
from gpulayer.protocol.endpoint import Endpoint


def finder(url: str | None, token: str | None, fingerprint: str | None, data: Path | None) -> Find:
    """How the control plane is found, now and after each break.

    Args:
        url: of one elsewhere; None for the one of this machine, which is started where none runs.
        token: for it.
        fingerprint: of its certificate.
        data: the data folder of one of this machine; None for the usual one.

    Raises:
        ControlPlaneError: `url` is no address, or there is no token for it.
    """
    if url is None:
        return lambda: find_or_start(data)
    if data is not None:
        raise TypeError("url names a control plane elsewhere, data one of this machine: only one of them")
    endpoint = endpoint_of(url, token or "", fingerprint or "")
    return lambda: reached(endpoint)


class Tie:
    """Tells a transfer where the control plane is."""

    def __init__(self, find: Find):
        """`find` gives where it is, or raises that nobody is there."""
        self._find = find

    @property
    def endpoint(self) -> Endpoint | None:
        """None where nobody is found now."""
        try:
            return self._find()
        except (ControlPlaneError, OSError):
            return None
