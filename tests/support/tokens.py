"""Tokens made over HTTP, requests that bring them, and workers that joined by them."""

from __future__ import annotations

import socket
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from gpulayer.protocol.messages import (
    Hello,
    Order,
    to_worker,
)
from gpulayer.protocol.types import PROTOCOL_VERSION, Inventory

INVENTORY = Inventory(host="h", os="linux", arch="x", cpu_cores=1, ram_bytes=1, python="3")


def made(plane: Any, **more: Any) -> dict[str, Any]:
    answer = plane.request("POST", "/v1/tokens", json={"role": "join"} | more)
    assert answer.status_code == 201, answer.text
    return answer.json()


def by(plane: Any, token: str) -> httpx.Client:
    """A client that brings a token, or none; a connection for each request: some answers end theirs."""
    headers = {"Connection": "close"} | ({"Authorization": f"Bearer {token}"} if token else {})
    return httpx.Client(base_url=plane.endpoint.url, headers=headers, trust_env=False, timeout=30)


def ask(plane: Any, token: str, method: str, path: str, **more: Any) -> httpx.Response:
    with by(plane, token) as client:
        return client.request(method, path, **more)


def raw(plane: Any, line: str, authorization: str) -> int:
    """The status of a request that no client would put so."""
    with socket.create_connection(("127.0.0.1", int(plane.endpoint.url.rsplit(":", 1)[1])), timeout=30) as connection:
        head = f"{line} HTTP/1.1\r\nHost: x\r\nAuthorization: {authorization}\r\nConnection: close\r\n\r\n"
        connection.sendall(head.encode())
        return int(connection.makefile("rb").readline().split()[1])


def join(plane: Any, token: str, worker: str = "w1", name: str = "alpha") -> httpx.Response:
    return ask(plane, token, "POST", "/v1/join", json={"worker_id": worker, "name": name})


def credential(plane: Any, worker: str = "w1", name: str = "alpha") -> str:
    answer = join(plane, made(plane)["token"], worker, name)
    assert answer.status_code == 201, answer.text
    return answer.json()["credential"]


def listed(plane: Any, name: str) -> dict[str, Any]:
    [found] = [each for each in plane.request("GET", "/v1/tokens").json() if each["name"] == name]
    return found


class Joined:
    """A worker that is connected by its credential, and sends one hello."""

    def __init__(self, plane: Any, credential: str, worker: str = "w1", *, name: str = "alpha", local: bool = False):
        url = plane.endpoint.url.replace("http", "ws", 1) + "/v1/worker"
        headers = {"Authorization": f"Bearer {credential}"}
        self._connecting = connect(url, additional_headers=headers, proxy=None, close_timeout=1)
        self.socket = self._connecting.__enter__()
        self.order = Order()
        hello = Hello(
            protocol=PROTOCOL_VERSION, worker_id=worker, nonce="n", name=name, version="0", slots=1,
            inventory=INVENTORY, local=local,
        )  # fmt: skip
        self.socket.send(self.order.number([hello]))

    def next(self, kind: type[Any]) -> Any:
        while True:
            frame = self.socket.recv(timeout=30)
            assert isinstance(frame, bytes)
            for message in to_worker(self.order.accept(frame) or b"\x90"):
                if isinstance(message, kind):
                    return message

    def until_closed(self) -> None:
        with pytest.raises(ConnectionClosed):
            self.next(type(None))

    def close(self) -> None:
        self._connecting.__exit__(None, None, None)
