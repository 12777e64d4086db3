"""Jupyter's own TLS: requests and websockets pass as they do without it."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from gpulayer._version import __version__
from gpulayer.protocol.messages import ClientHello, ClientWelcome, encode, to_client
from gpulayer.protocol.types import PROTOCOL_VERSION
from tests.integration.jupyter.server import Servers
from tests.support.processes import PATIENCE_S

x509 = pytest.importorskip("cryptography.x509")


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for loopback, signed by nobody else, and its key."""
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.timezone.utc)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    files = folder / "certificate.pem", folder / "key.pem"
    files[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    unencrypted = serialization.NoEncryption()
    files[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, unencrypted))
    return files


def test_websockets_and_requests_under_tls(servers: Servers) -> None:
    chain, key = certificate(servers.deployment.folder)
    server = servers.make(secure=True)
    server.start(f"--ServerApp.certfile={chain}", f"--ServerApp.keyfile={key}", "--GpulayerApp.local_worker=False")
    server.until_state("holds")
    assert server.request("POST", "v1/blobs", content=b"nonsense" * 100_000).json()["code"] == "bad_source"
    with server.websocket("v1/client") as opened:
        for _ in range(3):
            opened.send(encode([ClientHello(protocol=PROTOCOL_VERSION, version=__version__)]))
            (welcome,) = to_client(opened.recv(PATIENCE_S))
            assert isinstance(welcome, ClientWelcome)
        opened.ping().wait(PATIENCE_S)
    with server.websocket("v1/watch") as watching:
        assert '"type":"fleet"' in watching.recv(PATIENCE_S)
        servers.deployment.worker("late")
        assert '"name":"late"' in watching.recv(PATIENCE_S)
