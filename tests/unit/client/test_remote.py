"""A control plane on another machine: one clear line for whatever is wrong, and nothing is started."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulayer.client import embedded, remote
from gpulayer.client.embedded import find_or_start
from gpulayer.client.errors import ControlPlaneError
from gpulayer.client.remote import Unreachable, endpoint_of, named, reached
from gpulayer.client.tls import httpx_options
from gpulayer.protocol.endpoint import REMOTE
from gpulayer.protocol.pin import fingerprint
from gpulayer_server.tls import Certificate, own_certificate
from tests.support.answering import Answer, Answering, answering, of_json, problem

HERE = of_json(200, {"version": "0", "epoch": 1})


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test finds what another one named, and none starts anything."""
    monkeypatch.setattr(remote, "_named", None)
    for name in REMOTE:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(embedded, "_start", lambda _: pytest.fail("a control plane was started"))


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[tuple[Answering, Certificate]]:
    certificate = own_certificate(tmp_path)
    with answering(lambda _: HERE) as plane:
        plane.server.socket = certificate.context().wrap_socket(plane.server.socket, server_side=True)
        plane.url = plane.url.replace("http:", "https:")
        yield plane, certificate


def leads(monkeypatch: pytest.MonkeyPatch, *values: str) -> None:
    for name, value in zip(REMOTE, values, strict=False):
        monkeypatch.setenv(name, value)


def test_the_environment_leads_to_it_and_is_scrubbed(
    plane: tuple[Answering, Certificate], monkeypatch: pytest.MonkeyPatch
) -> None:
    answering, certificate = plane
    leads(monkeypatch, f"{answering.url}/", "secret", certificate.fingerprint.upper())
    for _ in range(2):  # the second time from memory: the variables are gone
        endpoint = find_or_start()
        assert (endpoint.url, endpoint.token) == (answering.url, "secret")
        assert fingerprint(endpoint.certificate) == endpoint.fingerprint == certificate.fingerprint
    assert [(asked.line, asked.token) for asked in answering.asked] == [("GET /v1/health", "secret")] * 2
    assert not any(name in os.environ for name in REMOTE)
    shown = subprocess.run(
        [sys.executable, "-c", "import os; print(dict(os.environ))"], capture_output=True, check=True
    )
    assert b"secret" not in shown.stdout
    options = httpx_options(endpoint)
    assert options["headers"] == {"Authorization": "Bearer secret"}
    assert options["base_url"] == answering.url


def test_another_address_does_not_get_the_token_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    leads(monkeypatch, "https://one.example", "secret")
    first = named()
    assert first is not None
    leads(monkeypatch, "https://two.example")
    with pytest.raises(ControlPlaneError, match=r"no token for https://two\.example: set GPULAYER_TOKEN"):
        named()


def test_a_folder_that_is_named_is_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leads(monkeypatch, "https://one.example", "secret")
    monkeypatch.setenv("GPULAYER_EMBEDDED", "0")
    with pytest.raises(ControlPlaneError, match=r"endpoint\.json is not there"):
        find_or_start(tmp_path)


def test_a_wrong_fingerprint_sends_nothing(plane: tuple[Answering, Certificate]) -> None:
    answering, certificate = plane
    wrong = f"SHA256:{'0' * 64}"
    endpoint = endpoint_of(answering.url, "secret", wrong)
    for ask in (reached, httpx_options):
        with pytest.raises(ControlPlaneError) as refused:
            ask(endpoint)
        line = str(refused.value)
        assert f"presents the fingerprint {certificate.fingerprint}, expected was {wrong}" in line
        assert not isinstance(refused.value, OSError), "it is not tried again"
    assert answering.asked == []


def test_a_certificate_that_nobody_vouches_for(plane: tuple[Answering, Certificate]) -> None:
    answering, _ = plane
    with pytest.raises(ControlPlaneError, match=r"that this system does not trust: .*; set GPULAYER_FINGERPRINT"):
        reached(endpoint_of(answering.url, "secret"))
    assert answering.asked == []


@pytest.mark.parametrize(
    ("answer", "said", "away"),
    [
        (problem(401, "unauthorized"), "does not know this token: set GPULAYER_TOKEN to one that it made", False),
        (problem(401, "token_expired", "the token a has expired", "ask"), "refuses the token: the token a has", False),
        (
            problem(403, "wrong_role", "a token of the role join may not", "it needs x"),
            "role join may not: it ne",
            False,
        ),
        (Answer(status=502, body=b"<html>"), "answers 502: its control plane is away for now", True),
        (Answer(status=404, body=b"<html>"), "is not a control plane's address: it answers 404", False),
        (Answer(status=302, headers={"Location": "/login"}), "is not a control plane's address: it ans", False),
        (Answer(status=0), "can't be reached: ", True),
    ],
)
def test_one_line_for_each_answer(plane: tuple[Answering, Certificate], answer: Answer, said: str, away: bool) -> None:
    answering, certificate = plane
    answering.answer = lambda _: answer
    with pytest.raises(ControlPlaneError) as refused:
        reached(endpoint_of(answering.url, "secret", certificate.fingerprint))
    line = str(refused.value)
    assert said in line
    assert line.startswith(answering.url)
    assert "\n" not in line
    assert "secret" not in line
    assert isinstance(refused.value, Unreachable) is away
    assert isinstance(refused.value, OSError) is away


def test_nobody_there_may_come_back() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(Unreachable, match=rf"https://127.0.0.1:{port} can't be reached: .*refused; is it running"):
        reached(endpoint_of(f"https://127.0.0.1:{port}", "secret", "0" * 64))


@pytest.mark.parametrize(
    ("url", "token", "text", "said"),
    [
        ("192.168.1.5:8443", "t", "", "is not an address such as https://HOST:PORT"),
        ("https://box:99999", "t", "", "'https://box:99999' is not an address: Port out of range"),
        ("https://a..b:8443", "t", "", "'https://a..b:8443' is not an address: no host has such a name"),
        ("https://[::1", "t", "", "is not an address: Invalid IPv6 URL"),
        ("https://user:pass@box:8443", "t", "", "GPULAYER_URL: 'box:8443' is not an address"),
        ("https://box:8443/?token=t", "t", "", "GPULAYER_URL: 'https://box:8443/' is not an address"),
        ("https://box:8443", "t\nX: y", "", "what GPULAYER_TOKEN holds is not a token"),
        ("https://box:8443", "tö", "", "what GPULAYER_TOKEN holds is not a token"),
        ("http://192.0.2.1:8443", "t", "", "is plain http: the token, and all that follows"),
        ("https://box:8443", " ", "", "no token for https://box:8443: set GPULAYER_TOKEN"),
        ("https://box:8443", "t", "SHA256:12", "GPULAYER_FINGERPRINT: 'SHA256:12' is not a fingerprint"),
    ],
)
def test_what_can_not_be_one(url: str, token: str, text: str, said: str) -> None:
    with pytest.raises(ControlPlaneError, match=re.escape(said)) as refused:
        endpoint_of(url, token, text)
    assert not any(secret in str(refused.value) for secret in ("X: y", "tö", "pass@", "token=t"))
