"""HTTP to the control plane: below its own path, by the proxy or not, with what the system trusts."""

from __future__ import annotations

import ssl

import msgspec
import pytest

from gpulayer.protocol.endpoint import Endpoint
from gpulayer.protocol.problems import problem_in
from gpulayer.protocol.types import Problem
from gpulayer_worker.web import open_client
from tests.support.answering import Answer, Asked, answering


def endpoint(url: str) -> Endpoint:
    return Endpoint(url=url, token="secret", pid=0, version="")


@pytest.mark.parametrize("prefix", ["", "/gpulayer", "/user/x/gpulayer"])
def test_every_path_lies_below_the_addresss_own(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On loopback no proxy is used, whatever the environment says."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with answering(lambda _: Answer(body=b"here")) as plane, open_client(endpoint(plane.url + prefix), 30.0) as client:
        assert client.get("/v1/blobs/abc").content == b"here"
        assert client.post("/v1/blobs/fetch", params={"coding": "zstd"}).content == b"here"
    assert plane.asked == [
        Asked(line=f"GET {prefix}/v1/blobs/abc", token="secret", body=None),
        Asked(line=f"POST {prefix}/v1/blobs/fetch?coding=zstd", token="secret", body=None),
    ]


def test_elsewhere_the_environments_proxy_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(lambda _: Answer(body=b"by proxy")) as proxy:
        for name in ("http_proxy", "HTTP_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        monkeypatch.setenv("no_proxy", "")
        monkeypatch.setenv("NO_PROXY", "")
        with open_client(endpoint("http://control-plane.invalid:8888/x"), 30.0) as client:
            assert client.get("/v1/health").content == b"by proxy"
    assert [asked.line for asked in proxy.asked] == ["GET http://control-plane.invalid:8888/x/v1/health"]


def test_no_redirect_is_followed_with_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(lambda _: Answer(body=b"stolen")) as other:
        moved = Answer(status=302, headers={"Location": f"{other.url}/v1/health"})
        with answering(lambda _: moved) as plane, open_client(endpoint(plane.url), 30.0) as client:
            assert client.get("/v1/health").status_code == 302
    assert other.asked == []


def test_https_trusts_what_the_system_trusts(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[ssl.SSLContext] = []

    def create() -> ssl.SSLContext:
        made.append(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        return made[-1]

    monkeypatch.setattr(ssl, "create_default_context", create)
    open_client(endpoint("https://127.0.0.1"), 1.0).close()
    assert len(made) == 1
    assert (made[0].check_hostname, made[0].verify_mode) == (True, ssl.CERT_REQUIRED)
    open_client(endpoint("http://127.0.0.1"), 1.0).close()
    assert len(made) == 1  # what is not needed takes long to make


PROBLEM = Problem(status=401, code="token_revoked", title="no", detail="ask")


@pytest.mark.parametrize(
    ("kind", "body", "found"),
    [
        ("application/problem+json", msgspec.json.encode(PROBLEM), PROBLEM),
        ("application/problem+json; charset=utf-8", msgspec.json.encode(PROBLEM), PROBLEM),
        ("application/json", msgspec.json.encode(PROBLEM), None),
        ("text/html", b"<html>", None),
        ("", b"", None),
        ("application/problem+json", b"", None),
        ("application/problem+json", b"<html>", None),
        ("application/problem+json", b'{"status":401}', None),
        ("application/problem+json", msgspec.json.encode(PROBLEM) + b" " * 70_000, None),
    ],
)
def test_whose_answer_it_is(kind: str, body: bytes, found: Problem | None) -> None:
    assert problem_in(kind, body) == found
