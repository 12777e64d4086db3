"""The second port: opened when somebody says so, remembered, taken up again."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx
import pytest

from gpulayer.protocol.pin import pin, trusting
from gpulayer_server import listening
from gpulayer_server.datafolder import Listen, read_listen
from gpulayer_server.listening import ListenError, bind, default_address, reachable
from gpulayer_server.service import Service
from tests.support.processes import until

ANY = Listen(host="127.0.0.1", port=0)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))


async def health(service: Service, url: str, token: str) -> int:
    """The status with which it answers at an address, by its own certificate."""
    certificate = service.listener.certificate
    assert certificate is not None
    pem = await asyncio.to_thread(pin, url, certificate.fingerprint)
    async with httpx.AsyncClient(verify=trusting(pem), trust_env=False) as client:
        answer = await client.get(f"{url}/v1/health", headers={"Authorization": f"Bearer {token}"})
    return answer.status_code


@pytest.mark.parametrize(
    ("text", "host", "port", "url"),
    [
        ("192.168.1.5:8443", "192.168.1.5", 8443, "https://192.168.1.5:8443"),
        ("box.lab:1", "box.lab", 1, "https://box.lab:1"),
        ("[::1]:8443", "::1", 8443, "https://[::1]:8443"),
        (" 0.0.0.0:0 ", "0.0.0.0", 0, "https://0.0.0.0:0"),
    ],
)
def test_an_address_as_it_is_written(text: str, host: str, port: int, url: str) -> None:
    found = read_listen(text)
    assert (found.host, found.port, found.url) == (host, port, url)


@pytest.mark.parametrize("text", ["", "8443", ":8443", "box", "box:", "box:http", "box:65536", "::1:8443", "box:-1"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="is not an address such as"):
        read_listen(text)


def test_nothing_listens_beyond_loopback_until_somebody_says_so(tmp_path: Path) -> None:
    async def test() -> None:
        service = Service(tmp_path)
        await service.start()
        assert service.listener.url == ""
        assert not (tmp_path / "tls").exists()
        await service.stop(with_local_worker=False)

    run(test)


def test_it_listens_by_tls_and_the_next_holder_does_too(tmp_path: Path) -> None:
    async def test() -> None:
        service = Service(tmp_path, listen=ANY)
        endpoint = await service.start()
        url = service.listener.url
        assert await health(service, url, endpoint.token) == 200
        assert await health(service, url, "wrong") == 401
        await service.stop(with_local_worker=False)
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])))
        again = Service(tmp_path)
        endpoint = await again.start()
        await asyncio.to_thread(until, lambda: again.listener.url, "it to listen again")
        assert again.listener.url == url
        assert await health(again, url, endpoint.token) == 200
        await again.stop(with_local_worker=False)

    run(test)


def test_a_port_that_is_taken_is_one_line_and_the_folder_is_free(tmp_path: Path) -> None:
    async def test() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            service = Service(tmp_path, listen=Listen(host="127.0.0.1", port=port))
            with pytest.raises(ListenError) as refused:
                await service.start()
        assert str(refused.value) == f"port {port} of 127.0.0.1 is taken by another program; choose another port"
        assert not (tmp_path / "listen.json").exists()
        assert not (tmp_path / "endpoint.json").exists(), "it never said that it listens"
        other = Service(tmp_path)
        await other.start()
        await other.stop(with_local_worker=False)

    run(test)


def test_one_that_was_remembered_and_is_taken_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The control plane is there all the same: for this machine, and for others once the port is free."""
    monkeypatch.setattr(listening, "_FIRST_RETRY_S", 0.01)

    async def test() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            (tmp_path / "listen.json").write_text(json.dumps({"host": "127.0.0.1", "port": port}))
            service = Service(tmp_path)
            endpoint = await service.start()
            await asyncio.to_thread(until, lambda: "can't reach this control plane" in caplog.text, "the word on it")
            assert service.listener.url == ""
        await asyncio.to_thread(until, lambda: service.listener.url, "it to listen")
        assert await health(service, f"https://127.0.0.1:{port}", endpoint.token) == 200
        await service.stop(with_local_worker=False)

    run(test)
    assert caplog.text.count("can't reach this control plane") == 1


def test_it_opens_and_moves_while_it_runs(tmp_path: Path) -> None:
    async def test() -> None:
        service = Service(tmp_path)
        endpoint = await service.start()
        headers = {"Authorization": f"Bearer {endpoint.token}"}
        async with httpx.AsyncClient(base_url=endpoint.url, headers=headers, trust_env=False) as client:
            assert (await client.get("/v1/listen")).json() == {"host": "", "port": 0, "fingerprint": ""}
            first = (await client.post("/v1/listen", json={"host": "127.0.0.1", "port": 0})).json()
            assert await health(service, f"https://127.0.0.1:{first['port']}", endpoint.token) == 200
            assert (await client.get("/v1/listen")).json() == first
            same = {"host": "127.0.0.1", "port": first["port"]}
            assert (await client.post("/v1/listen", json=same)).json() == first
            with socket.create_server(("127.0.0.1", 0)) as taken:
                other = {"host": "127.0.0.1", "port": taken.getsockname()[1]}
                refused = await client.post("/v1/listen", json=other)
                assert (refused.status_code, refused.json()["code"]) == (409, "cannot_listen")
            assert service.listener.url == f"https://127.0.0.1:{first['port']}", "what was is still"
            second = (await client.post("/v1/listen", json={"host": "127.0.0.1", "port": 0})).json()
            assert second["fingerprint"] == first["fingerprint"]
        assert json.loads((tmp_path / "listen.json").read_bytes()) == {"host": "127.0.0.1", "port": second["port"]}
        await service.stop(with_local_worker=False)

    run(test)


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("203.0.113.7", "is not an address of this machine"),
        ("no-such-host.invalid", "is not the name of an address"),
        ("a..b", "'a..b' is not the name of an address: it can't be one"),
        ("a\0b", "is not the name of an address"),
        ("x" * 70, "is not the name of an address"),
    ],
)
def test_an_address_that_is_not_ours(host: str, said: str) -> None:
    with pytest.raises(ListenError, match=said):
        bind(Listen(host=host, port=0))


def test_which_address_others_are_told() -> None:
    assert reachable("10.1.2.3") == "10.1.2.3"
    assert reachable("0.0.0.0") == reachable("::") == default_address()
    bind(Listen(host=default_address(), port=0)).close()
