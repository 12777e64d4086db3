"""HTTP to the control plane, wherever it is."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from gpulayer.protocol.endpoint import Endpoint, on_loopback
from gpulayer.protocol.lazily import Lazily
from gpulayer.protocol.pin import context_of, proxied

if TYPE_CHECKING:
    import httpx
else:
    httpx = Lazily("httpx")

logging.getLogger("httpx").setLevel(logging.WARNING)  # it would write a line of each request


def open_client(endpoint: Endpoint, timeout: tuple[float, float, float, float] | float) -> httpx.Client:
    """A client whose paths begin with `/v1`, below the address's own path. It follows no redirect.

    With https it trusts the endpoint's own certificate alone, where it has one, else what this system trusts. Raises
    ValueError or ImportError for a proxy of the environment that can't be used.
    """
    from gpulayer.source.direct import Direct  # it needs httpx

    context = context_of(endpoint)
    return httpx.Client(
        base_url=endpoint.url,
        headers={"Authorization": f"Bearer {endpoint.token}"},
        timeout=timeout,
        transport=None if proxied(endpoint.url) else Direct(endpoint.url, context),
        verify=context or False,  # without TLS there are no certificates to load, which takes 60 ms
        trust_env=not on_loopback(endpoint.url),
    )
