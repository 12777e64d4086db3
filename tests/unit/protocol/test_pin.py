"""Pinned certificates: no byte of a credential before the pin holds, and no other certificate after it."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from gpulayer.protocol import pin as pinning
from gpulayer.protocol.endpoint import Endpoint
from gpulayer.protocol.pin import (
    PinError,
    context_of,
    dial,
    fingerprint,
    pin,
    pinned,
    presented,
    read_fingerprint,
    trusting,
    unencrypted,
)
from gpulayer_server.tls import Certificate, own_certificate
from tests.support.front import certificate as other_certificate
from tests.support.processes import until

HEX = "0123456789abcdef" * 4


class Server:
    """Presents a certificate, and keeps what is said to it."""

    def __init__(self, context: ssl.SSLContext):
        self._context = context
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.url = f"https://127.0.0.1:{self.port}"
        self.heard: list[bytes] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.is_set():
            connection, _ = self._listening.accept()
            try:
                with self._context.wrap_socket(connection, server_side=True) as secure:
                    self.heard.append(secure.recv(1000))
            except OSError:
                connection.close()

    def close(self) -> None:
        self._ended.set()
        socket.create_connection(("127.0.0.1", self.port)).close()
        self._thread.join()
        self._listening.close()


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return own_certificate(tmp_path_factory.mktemp("data"))


@pytest.fixture
def serve() -> Iterator[Callable[[ssl.SSLContext], Server]]:
    servers: list[Server] = []

    def serve(context: ssl.SSLContext) -> Server:
        servers.append(Server(context))
        return servers[-1]

    yield serve
    for server in servers:
        server.close()


def talk(server: Server, context: ssl.SSLContext) -> None:
    with dial(server.url) as plain, context.wrap_socket(plain, server_hostname="127.0.0.1") as secure:
        secure.sendall(b"secret")


# ---------------------------------------------------------------- fingerprints


@pytest.mark.parametrize(
    "text",
    [
        f"SHA256:{HEX}", f"sha256:{HEX.upper()}", f"SHA-256:{HEX}", HEX, f" {HEX}\n",
        ":".join(HEX[n : n + 2].upper() for n in range(0, 64, 2)),
        "SHA256:" + ":".join(HEX[n : n + 2] for n in range(0, 64, 2)),
    ],
)  # fmt: skip
def test_a_fingerprint_is_read_in_any_of_its_forms(text: str) -> None:
    assert read_fingerprint(text) == f"SHA256:{HEX}"


@pytest.mark.parametrize("text", ["", "SHA256:", HEX[1:], f"{HEX}0", f"MD5:{HEX}", f"SHA256:{'g' * 64}", f"{HEX} x"])
def test_what_is_no_fingerprint(text: str) -> None:
    with pytest.raises(ValueError, match="is not a fingerprint such as SHA256:"):
        read_fingerprint(text)


def test_a_fingerprint_is_that_of_the_certificate_whatever_its_form(own: Certificate) -> None:
    pem = own.path.read_text()
    pem = pem[pem.index("-----BEGIN CERTIFICATE") :]
    assert fingerprint(pem) == fingerprint(ssl.PEM_cert_to_DER_cert(pem)) == own.fingerprint


# ---------------------------------------------------------------- the pin


def test_the_pin_says_nothing_and_gives_the_certificate(own: Certificate, serve: Callable[..., Server]) -> None:
    server = serve(own.context())
    certificate = pin(server.url, own.fingerprint.upper())
    assert fingerprint(certificate) == own.fingerprint
    assert presented(server.url) == certificate
    talk(server, trusting(certificate))
    until(lambda: b"secret" in server.heard, "the server to hear of it")
    assert set(server.heard) <= {b"", b"secret"}


def test_another_certificate_is_refused_and_named(
    own: Certificate, serve: Callable[..., Server], tmp_path: Path
) -> None:
    other = own_certificate(tmp_path)
    server = serve(other.context())
    with pytest.raises(PinError) as refused:
        pin(server.url, own.fingerprint)
    assert (refused.value.expected, refused.value.presented) == (own.fingerprint, other.fingerprint)
    line = str(refused.value)
    assert own.fingerprint in line
    assert other.fingerprint in line
    assert "nothing was sent" in line


def test_only_the_pinned_certificate_is_trusted(own: Certificate, serve: Callable[..., Server], tmp_path: Path) -> None:
    certificate = pin(serve(own.context()).url, own.fingerprint)
    with pytest.raises(ssl.SSLCertVerificationError):
        talk(serve(own_certificate(tmp_path).context()), trusting(certificate))


def signed(by: tuple[x509.Name, ec.EllipticCurvePrivateKey], key: ec.EllipticCurvePrivateKey, name: str) -> bytes:
    """A certificate (PEM) of a key, which calls itself an authority."""
    now = datetime.datetime.now(datetime.timezone.utc)
    made = (
        x509.CertificateBuilder()
        .subject_name(named(name))
        .issuer_name(by[0])
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(by[1], hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM)


def named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


@pytest.mark.parametrize("by", ["sockets", "memory"])
@pytest.mark.parametrize("who", ["itself", "same key", "signed by it", "same names"])
def test_exactly_this_certificate_and_none_that_it_vouches_for(
    serve: Callable[..., Server], tmp_path: Path, who: str, by: str
) -> None:
    ours, others = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    own = signed((named("own"), ours), ours, "own")
    key, chain = {
        "itself": (ours, own),
        "same key": (ours, signed((named("own"), ours), ours, "own")),
        "signed by it": (others, signed((named("own"), ours), others, "other") + own),
        "same names": (others, signed((named("own"), others), others, "own") + own),
    }[who]
    pem = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (tmp_path / "c.pem").write_bytes(key.private_bytes(*pem) + chain)
    presents = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    presents.load_cert_chain(tmp_path / "c.pem")
    server = serve(presents)
    talks = talk if by == "sockets" else talk_in_memory
    if who == "itself":
        talks(server, trusting(own.decode()))
        until(lambda: server.heard, "it to be heard")
    else:
        with pytest.raises(ssl.SSLCertVerificationError):
            talks(server, trusting(own.decode()))
    assert b"".join(server.heard) == (b"secret" if who == "itself" else b"")


def talk_in_memory(server: Server, context: ssl.SSLContext) -> None:
    """As asyncio does it."""

    async def run() -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context, server_hostname="x")
        writer.write(b"secret")
        await writer.drain()
        writer.close()
        with contextlib.suppress(ConnectionError):  # the server may have closed its end the hard way
            await writer.wait_closed()

    asyncio.run(run())


def test_a_certificate_of_somebody_elses_may_be_pinned(serve: Callable[..., Server], tmp_path: Path) -> None:
    """Such as that of a proxy: for another host, signed by whoever it may be."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(other_certificate(tmp_path))
    server = serve(context)
    talk(server, trusting(pin(server.url, fingerprint(presented(server.url)))))


def test_an_endpoint_is_pinned_once_in_a_process(
    own: Certificate, serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(own.context())
    asked: list[str] = []
    real = pin
    monkeypatch.setattr(pinning, "pin", lambda url, *more: asked.append(url) or real(url, *more))
    endpoint = Endpoint(url=server.url, token="t", pid=0, version="", fingerprint=own.fingerprint)
    for _ in range(2):
        assert fingerprint(pinned(endpoint).certificate) == own.fingerprint
    assert asked == [server.url]
    whole = pinned(endpoint)
    assert pinned(whole) is whole
    assert context_of(whole) is context_of(endpoint)


def test_without_a_fingerprint_the_system_decides(own: Certificate, serve: Callable[..., Server]) -> None:
    server = serve(own.context())
    context = context_of(Endpoint(url=server.url, token="t", pid=0, version=""))
    assert context is not None
    assert context.check_hostname
    with pytest.raises(ssl.SSLCertVerificationError):
        talk(server, context)
    assert context_of(Endpoint(url="http://127.0.0.1:1", token="t", pid=0, version="")) is None


@pytest.mark.parametrize(
    ("url", "clear"),
    [
        ("http://10.0.0.1:8443", True),
        ("http://box/", True),
        ("http://127.0.0.1:1", False),
        ("http://localhost:8888", False),
        ("https://10.0.0.1:8443", False),
        ("http://hub.example/user/x/gpulayer", False),
    ],
)
def test_where_a_token_would_go_in_the_clear(url: str, clear: bool) -> None:
    assert unencrypted(url) is clear


# ---------------------------------------------------------------- proxies


def test_a_proxy_of_the_environment_is_gone_through_but_not_on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        heads: list[bytes] = []

        def answer(status: bytes) -> threading.Thread:
            def run() -> None:
                connection, _ = proxy.accept()
                with connection:
                    heads.append(connection.recv(10_000))
                    connection.sendall(b"HTTP/1.1 " + status + b"\r\nVia: x\r\n\r\nafter")

            thread = threading.Thread(target=run)
            thread.start()
            return thread

        monkeypatch.setenv("https_proxy", f"http://me:p%40ss@127.0.0.1:{proxy.getsockname()[1]}")
        monkeypatch.setenv("no_proxy", "inside.example")
        thread = answer(b"200 OK")
        with dial("https://box.example/x") as made:
            assert made.recv(100) == b"after", "what follows is the other side's"
        thread.join()
        assert heads[0].startswith(b"CONNECT box.example:443 HTTP/1.1\r\nHost: box.example:443\r\n")
        assert b"Proxy-Authorization: Basic bWU6cEBzcw==\r\n" in heads[0]
        thread = answer(b"407 Who are you")
        with pytest.raises(OSError, match=r"refused the way to box.example:8443: 407 Who are you"):
            dial("https://box.example:8443")
        thread.join()
    with socket.create_server(("127.0.0.1", 0)) as direct, dial(f"https://127.0.0.1:{direct.getsockname()[1]}"):
        direct.accept()[0].close()
    monkeypatch.setenv("https_proxy", "socks5://127.0.0.1:1080")
    with pytest.raises(OSError, match="only http:// proxies are"):
        dial("https://box.example")
