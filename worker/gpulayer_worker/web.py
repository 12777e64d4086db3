"""HTTP to the control plane, wherever it is."""

from __future__ import annotations

import httpx

from gpulayer.protocol.endpoint import Endpoint, on_loopback
from gpulayer.protocol.pin import context_of


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
