"""A control plane on another machine, by its address: pinned and asked before anything else, and nothing is started.

A person names it by GPULAYER_URL, GPULAYER_TOKEN and GPULAYER_FINGERPRINT. The first look takes the three out of this
process's environment: no child of it inherits a token.
"""

from __future__ import annotations

import http.client
import os
import re
import ssl
import threading

from gpulayer.client.errors import ControlPlaneError
from gpulayer.client.health import Health, ask_health
from gpulayer.protocol.endpoint import REMOTE, Endpoint, is_token, plain_address
from gpulayer.protocol.pin import PinError, pinned, read_fingerprint, unencrypted

_TIMEOUT_S = 10.0
_AWAY = (408, 425, 429, 500, 502, 503, 504)  # what a proxy answers whose control plane is just away
_LINE = "look at the line that `gpulayer up` shows on that machine"


class Unreachable(ControlPlaneError, ConnectionError):
    """Nobody answers there now: a connection that stood tries again."""


_named: Endpoint | None = None
_named_lock = threading.Lock()


def named() -> Endpoint | None:
    """The control plane that the environment names, or named when it was first looked at; None for this machine's own.

    Raises `ControlPlaneError` for what can't be one.
    """
    global _named
    with _named_lock:
        url, token, fingerprint = (os.environ.get(name, "") for name in REMOTE)
        if url:
            _named = endpoint_of(url, token, fingerprint)
            for name in REMOTE:
                os.environ.pop(name, None)
        return _named


def endpoint_of(url: str, token: str, fingerprint: str = "") -> Endpoint:
    """An address as it was named. Raises `ControlPlaneError` where it can't be used."""
    try:
        url = plain_address(url)
    except ValueError as error:
        raise ControlPlaneError(f"GPULAYER_URL: {error}; {_LINE}") from None
    if unencrypted(url):
        text = f"{url} is plain http: the token, and all that follows, would cross the network in the clear"
        raise ControlPlaneError(f"{text}; name its https address; {_LINE}")
    if not token.strip():
        text = f"no token for {url}: set GPULAYER_TOKEN"
        raise ControlPlaneError(
            f"{text}; `gpulayer token create --role submitter --name NAME` on that machine makes one"
        )
    if not is_token(token.strip()):
        text = "what GPULAYER_TOKEN holds is not a token: one has no spaces, line ends or other letters than ASCII"
        raise ControlPlaneError(f"{text}; copy it again as it was shown")
    if fingerprint:
        try:
            fingerprint = read_fingerprint(fingerprint)
        except ValueError as error:
            raise ControlPlaneError(f"GPULAYER_FINGERPRINT: {error}; {_LINE}") from None
    return Endpoint(url=url, token=token.strip(), pid=0, version="", fingerprint=fingerprint)


def reached(endpoint: Endpoint) -> Endpoint:
    """The endpoint with its certificate, once it has taken our token.

    Raises `Unreachable` where nobody answers now, `ControlPlaneError` for another certificate, a token that is none,
    and an address that is no control plane's: each in one line.
    """
    url = endpoint.url
    try:
        endpoint = pinned(endpoint, _TIMEOUT_S)
        health = ask_health(endpoint, _TIMEOUT_S)
    except ssl.SSLCertVerificationError as error:
        raise ControlPlaneError(_untrusted(endpoint, error)) from error
    except OSError as error:
        why = re.sub(r"^\[Errno -?\d+\] ", "", " ".join(str(error).split()))
        text = f"{url} can't be reached: {why or type(error).__name__}"
        raise Unreachable(f"{text}; is it running, is the address right, may this machine reach it?") from error
    except http.client.HTTPException as error:
        raise ControlPlaneError(f"{url} is not a control plane: it does not speak HTTP; {_LINE}") from error
    except PinError as error:
        raise ControlPlaneError(f"{error}; {_LINE}, and set GPULAYER_FINGERPRINT to what it says now") from error
    _judge(url, health)
    return endpoint


def _untrusted(endpoint: Endpoint, error: ssl.SSLCertVerificationError) -> str:
    if endpoint.fingerprint:
        text = f"{endpoint.url} presents another certificate than the one that was pinned ({endpoint.fingerprint})"
        return f"{text}; nothing was sent to it; {_LINE}, and set GPULAYER_FINGERPRINT to what it says now"
    text = f"{endpoint.url} presents a certificate that this system does not trust: {error.verify_message}"
    return f"{text}; set GPULAYER_FINGERPRINT: {_LINE}"


def _judge(url: str, health: Health) -> None:
    status, problem = health.status, health.problem
    if status == 200:
        return
    if status in (401, 403) and problem is not None:
        if problem.code == "unauthorized":
            text = f"{url} does not know this token: set GPULAYER_TOKEN to one that it made"
            raise ControlPlaneError(f"{text} (`gpulayer token create --role submitter --name NAME` on that machine)")
        raise ControlPlaneError(f"{url} refuses the token: {problem.line()}")
    if status in _AWAY:
        raise Unreachable(f"{url} answers {status}: its control plane is away for now")
    raise ControlPlaneError(f"{url} is not a control plane's address: it answers {status}; {_LINE}")
