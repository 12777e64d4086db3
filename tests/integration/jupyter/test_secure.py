"""Jupyter's own TLS: requests and websockets pass as they do without it."""

from __future__ import annotations

import pytest

from gpulayer._version import __version__
from gpulayer.protocol.messages import ClientHello, ClientWelcome, encode, to_client
from gpulayer.protocol.types import PROTOCOL_VERSION
from tests.integration.jupyter.server import Servers
from tests.support.front import certificate
from tests.support.processes import PATIENCE_S

pytest.importorskip("cryptography")


def test_websockets_and_requests_under_tls(servers: Servers) -> None:
    file = certificate(servers.deployment.folder)
    server = servers.make(secure=True)
    server.start(f"--ServerApp.certfile={file}", f"--ServerApp.keyfile={file}", "--GpulayerApp.local_worker=False")
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
        servers.deployment.worker("late", warm=0)
        assert '"name":"late"' in watching.recv(PATIENCE_S)
