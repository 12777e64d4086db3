"""HTTP to the control plane, wherever it is."""

from __future__ import annotations

import httpx
import msgspec

from gpulayer.protocol.endpoint import Endpoint, on_loopback
from gpulayer.protocol.pin import context_of
from gpulayer.protocol.types import Problem

ENDED_TOKENS = ("token_revoked", "token_expired", "token_used")
"""The codes of a control plane that knows the token it was given, and that it is good for nothing any more."""

_PROBLEM_BYTES = 65_536


def open_client(endpoint: Endpoint, timeout: httpx.Timeout | float) -> httpx.Client:
    """A client whose paths begin with `/v1`, below the address's own path. It follows no redirect.

    With https it trusts the endpoint's own certificate alone, where it has one, else what this system trusts. Raises
    ValueError or ImportError for a proxy of the environment that can't be used.
    """
    # without TLS there are no certificates to load, which takes 60 ms
    verify = context_of(endpoint) or False
    return httpx.Client(
        base_url=endpoint.url,
        headers={"Authorization": f"Bearer {endpoint.token}"},
        timeout=timeout,
        verify=verify,
        trust_env=not on_loopback(endpoint.url),
    )


def problem_in(content_type: str, body: bytes) -> Problem | None:
    """The problem that an answer tells of; None where it is no control plane's."""
    if not content_type.startswith("application/problem+json") or len(body) > _PROBLEM_BYTES:
        return None
    try:
        return msgspec.json.decode(body, type=Problem)
    except msgspec.MsgspecError:
        return None
