"""Pinned certificates: who answers is known by its certificate's fingerprint, before any credential is sent.

One function (`pin`) connects, compares and closes. What follows trusts exactly the certificate that it returned, as its
only anchor and without a look at host names; an address without a fingerprint is for the system's trust to judge.
"""

from __future__ import annotations

import functools
import hashlib
import re
import socket
import ssl
import threading
import urllib.parse

import msgspec

from gpulayer.protocol.endpoint import Endpoint, on_loopback

_FORM = re.compile(r"(?:sha-?256:?)?([0-9a-f]{64})", re.IGNORECASE)
_NO_CHECK_TIME = 0x200000  # X509_V_FLAG_NO_CHECK_TIME: the pin holds, whatever this machine takes for today
_TIMEOUT_S = 10.0
_CONNECT_BYTES = 65_536


class PinError(Exception):
    """An address presents another certificate than the one that was named, and nothing was sent to it."""

    def __init__(self, url: str, expected: str, presented: str):
        super().__init__(
            f"{url} presents the fingerprint {presented}, expected was {expected}: another machine answers there, or "
            "its certificate was made anew; nothing was sent to it"
        )
        self.expected = expected
        self.presented = presented


def read_fingerprint(text: str) -> str:
    """A fingerprint in its one form, `SHA256:` and 64 hexadecimal digits in lower case. Raises ValueError.

    Upper case, colons between the bytes and a missing `SHA256:` are read too.
    """
    found = _FORM.fullmatch(re.sub(r"(?<=[0-9a-fA-F]{2}):(?=[0-9a-fA-F]{2})", "", text.strip()))
    if found is None:
        raise ValueError(f"{text[:100]!r} is not a fingerprint such as SHA256:0123…, with 64 hexadecimal digits")
    return f"SHA256:{found[1].lower()}"


def fingerprint(certificate: str | bytes) -> str:
    """The fingerprint of a certificate, given as PEM or as DER."""
    der = ssl.PEM_cert_to_DER_cert(certificate) if isinstance(certificate, str) else certificate
    return f"SHA256:{hashlib.sha256(der).hexdigest()}"


def unencrypted(url: str) -> bool:
    """Whether a token would cross a network in the clear: plain http beyond loopback, at an address without a path.

    Jupyter's port, whose paths end in `/gpulayer`, may be plain http: whoever serves it so shows its own pages so too.
    """
    parts = urllib.parse.urlsplit(url)
    return parts.scheme == "http" and not on_loopback(url) and not parts.path.strip("/")


def dial(url: str, timeout_s: float = _TIMEOUT_S) -> socket.socket:
    """A connection to an address's host and port, without any TLS yet. Raises OSError.

    Beyond loopback it goes through the proxy that the environment names for the address, if it names one.
    """
    parts = urllib.parse.urlsplit(url)
    host, port = parts.hostname or "", parts.port or {"https": 443, "wss": 443}.get(parts.scheme, 80)
    proxy = _proxy_of(url)
    if proxy is None:
        return socket.create_connection((host, port), timeout=timeout_s)
    return _through(proxy, host, port, timeout_s)


def proxied(url: str) -> bool:
    """Whether the environment names a proxy for an address."""
    return _proxy_of(url) is not None


def _proxy_of(url: str) -> urllib.parse.SplitResult | None:
    parts = urllib.parse.urlsplit(url)
    return None if on_loopback(url) else _proxy(parts.scheme, parts.netloc.rpartition("@")[2])


def _proxy(scheme: str, netloc: str) -> urllib.parse.SplitResult | None:
    from urllib.request import getproxies, proxy_bypass  # it takes long to import

    schemes = {"ws": "http", "wss": "https"}
    proxies = getproxies()
    named = proxies.get(schemes.get(scheme, scheme)) or proxies.get("all")
    if not named or proxy_bypass(netloc):
        return None
    return urllib.parse.urlsplit(named if "://" in named else f"http://{named}")


def _through(proxy: urllib.parse.SplitResult, host: str, port: int, timeout_s: float) -> socket.socket:
    """A connection through an HTTP proxy's CONNECT. Raises OSError."""
    shown = f"the proxy {proxy.scheme}://{proxy.hostname}:{proxy.port}"
    if proxy.scheme != "http" or not proxy.hostname:
        raise OSError(f"{shown} that this environment names can't be used: only http:// proxies are")
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    lines = [f"CONNECT {where} HTTP/1.1", f"Host: {where}"]
    if proxy.username is not None:
        import base64

        who = f"{urllib.parse.unquote(proxy.username)}:{urllib.parse.unquote(proxy.password or '')}"
        lines.append(f"Proxy-Authorization: Basic {base64.b64encode(who.encode()).decode()}")
    made = socket.create_connection((proxy.hostname, proxy.port or 80), timeout=timeout_s)
    try:
        made.sendall("\r\n".join([*lines, "", ""]).encode())
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            byte = made.recv(1)  # what follows the head is the other side's already
            answer += byte
            if not byte or len(answer) > _CONNECT_BYTES:
                raise OSError(f"{shown} broke off")
        words = answer.split(b"\r\n", 1)[0].decode(errors="replace").split(" ", 2)
        if len(words) < 2 or not words[1].startswith("2"):
            raise OSError(f"{shown} refused the way to {where}: {' '.join(words[1:])[:100]}")
    except BaseException:
        made.close()
        raise
    return made


def presented(url: str, timeout_s: float = _TIMEOUT_S) -> str:
    """The certificate (PEM) that an https address presents: whoever's it is, nothing is said to it. Raises OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    host = urllib.parse.urlsplit(url).hostname
    with dial(url, timeout_s) as plain, context.wrap_socket(plain, server_hostname=host) as secure:
        der = secure.getpeercert(binary_form=True)
    if der is None:
        raise OSError(f"{url} presents no certificate")
    return ssl.DER_cert_to_PEM_cert(der)


def pin(url: str, expected: str, timeout_s: float = _TIMEOUT_S) -> str:
    """Connect, compare the certificate with the fingerprint `expected`, close; the certificate as PEM.

    Raises `PinError`, ValueError for what is no fingerprint, OSError where nobody answers.
    """
    wanted = read_fingerprint(expected)
    certificate = presented(url, timeout_s)
    found = fingerprint(certificate)
    if found != wanted:
        raise PinError(url, wanted, found)
    return certificate


_known: dict[tuple[str, str], str] = {}
_known_lock = threading.Lock()


def pinned(endpoint: Endpoint, timeout_s: float = _TIMEOUT_S) -> Endpoint:
    """The endpoint with its certificate, which is looked at where only its fingerprint is known; once in a process.

    Raises as `pin` does.
    """
    if endpoint.certificate or not endpoint.fingerprint:
        return endpoint
    key = (endpoint.url, endpoint.fingerprint)
    with _known_lock:
        certificate = _known.get(key, "")
    if not certificate:
        certificate = pin(*key, timeout_s)
        with _known_lock:
            _known[key] = certificate
    return msgspec.structs.replace(endpoint, certificate=certificate)


def context_of(endpoint: Endpoint) -> ssl.SSLContext | None:
    """What a connection to this endpoint trusts: its own certificate alone, else the system's; None for plain http.

    Raises as `pinned` does.
    """
    if urllib.parse.urlsplit(endpoint.url).scheme != "https":
        return None
    certificate = pinned(endpoint).certificate
    return trusting(certificate) if certificate else ssl.create_default_context()


class _Pinned(ssl.SSLContext):
    """A context whose connections compare the certificate at the end of each handshake, before they carry anything.

    OpenSSL alone would also take one that the pinned one has signed, where that calls itself an authority.
    """

    der: bytes = b""


def _compare(context: ssl.SSLContext, presented: bytes | None) -> None:
    if isinstance(context, _Pinned) and presented != context.der:
        error = ssl.SSLCertVerificationError(1, "certificate verify failed: another certificate than the pinned one")
        error.verify_message = "another certificate than the pinned one"
        raise error


class _PinnedSocket(ssl.SSLSocket):
    def do_handshake(self, block: bool = False) -> None:
        super().do_handshake(block)
        _compare(self.context, self.getpeercert(binary_form=True))


class _PinnedObject(ssl.SSLObject):
    def do_handshake(self) -> None:
        super().do_handshake()
        _compare(self.context, self.getpeercert(binary_form=True))


@functools.lru_cache(maxsize=8)
def trusting(certificate: str) -> ssl.SSLContext:
    """A client's context that trusts exactly one certificate (PEM), whatever host presents it."""
    context = _Pinned(ssl.PROTOCOL_TLS_CLIENT)
    context.der = ssl.PEM_cert_to_DER_cert(certificate)
    context.sslsocket_class, context.sslobject_class = _PinnedSocket, _PinnedObject
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=certificate)
    # The anchor need not be an authority: it is the certificate itself, no other that it might have signed.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    context.set_alpn_protocols(["http/1.1"])
    return context
