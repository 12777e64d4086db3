"""What an HTTP client of a control plane trusts, and how it goes there."""

from __future__ import annotations

import ssl
from typing import TypedDict

from gpulayer.client.errors import ControlPlaneError
from gpulayer.protocol.endpoint import Endpoint, on_loopback
from gpulayer.protocol.pin import PinError, context_of


class HttpxOptions(TypedDict):
    """Arguments of `httpx.Client` and `httpx.AsyncClient`."""

    base_url: str
    headers: dict[str, str]
    verify: ssl.SSLContext | bool
    trust_env: bool


def tls_context(endpoint: Endpoint) -> ssl.SSLContext | None:
    """What a connection to this endpoint trusts; None for plain http.

    Raises `ControlPlaneError` where its certificate is not the one that is pinned, OSError where nobody answers.
    """
    try:
        return context_of(endpoint)
    except (PinError, ValueError) as error:
        raise ControlPlaneError(str(error)) from error


def httpx_options(endpoint: Endpoint) -> HttpxOptions:
    """`httpx.Client(timeout=…, **httpx_options(endpoint))`: its address, token, trust and proxies.

    A pinned endpoint's certificate is compared before the first use. Raises `ControlPlaneError` where it is another
    one, OSError where nobody answers.
    """
    context = tls_context(endpoint)
    return HttpxOptions(
        base_url=endpoint.url,
        headers={"Authorization": f"Bearer {endpoint.token}"},
        verify=context or False,  # without TLS there are no certificates to load, which takes longer than a request
        trust_env=not on_loopback(endpoint.url),
    )
