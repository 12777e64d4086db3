"""Tokens over HTTP: made, listed, revoked, limited, and those of people."""

from __future__ import annotations

import contextlib
import getpass
import json
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from websockets.client import ClientProtocol
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.protocol import State as WireState
from websockets.sync.client import connect
from websockets.uri import parse_uri

from gpulayer.protocol.messages import (
    CancelJob,
    ClientHello,
    Refused,
    Submit,
    Welcome,
    encode,
    to_client,
)
from gpulayer.protocol.types import PROTOCOL_VERSION, CommandSpec, JobSpec
from gpulayer_server.auth import Token
from gpulayer_server.core.state import Limits
from gpulayer_server.http.base import Handler
from gpulayer_server.store.database import StoreError
from tests.support.processes import until
from tests.support.tokens import Joined, ask, credential, join, listed, made

# ---------------------------------------------------------------- making, listing, revoking


def test_a_token_is_seen_once(plane: Any) -> None:
    answer = plane.request("POST", "/v1/tokens", json={"role": "join", "name": "for the lab"})
    assert answer.headers["Cache-Control"] == "no-store"
    token = answer.json()
    limits = {"max_running", "max_devices"}
    assert set(token) == {"id", "name", "role", "token", "expires_at", "single_use", *limits}
    assert (token["name"], token["role"], token["single_use"]) == ("for the lab", "join", True)
    all = plane.request("GET", "/v1/tokens")
    assert token["token"] not in all.text
    [shown] = all.json()
    assert (shown["id"], shown["state"], shown["used_by"], shown["used_at"]) == (token["id"], "live", None, None)
    assert shown["expires_at"] - shown["created_at"] == pytest.approx(600)


def test_how_long_and_how_often_it_is_good_for_is_said(plane: Any) -> None:
    token = made(plane, expires_s=None, single_use=False)
    assert (token["expires_at"], token["single_use"]) == (None, False)
    assert [join(plane, token["token"], f"w{n}").status_code for n in range(3)] == [201] * 3


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "truncated"),
        (b"[]", "Expected `object`"),
        (b"{}", "missing required field `role`"),
        (b'{"role":"root"}', "$.role"),
        (b'{"role":"worker"}', "$.role"),
        (b'{"role":"join","expires_s":0}', "$.expires_s"),
        (b'{"role":"join","expires_s":-1}', "$.expires_s"),
        (b'{"role":"join","expires_s":1e300}', "$.expires_s"),
        (b'{"role":"join","expires_s":"soon"}', "$.expires_s"),
        (b'{"role":"join","single_use":1}', "$.single_use"),
        (b'{"role":"join","name":"a\\nb"}', "$.name"),
        (b'{"role":"join","name":"a\\n"}', "$.name"),
        (json.dumps({"role": "join", "name": "x" * 101}).encode(), "$.name"),
    ],
)
def test_a_token_that_can_not_be_made(plane: Any, body: bytes, said: str) -> None:
    answer = plane.request("POST", "/v1/tokens", content=body)
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")
    assert said in answer.json()["detail"]
    assert plane.request("GET", "/v1/tokens").json() == []


def test_revoking(plane: Any) -> None:
    token = made(plane, name="paste")
    for _ in range(2):
        answer = plane.request("DELETE", f"/v1/tokens/{token['id']}")
        assert (answer.status_code, answer.content) == (204, b"")
    assert listed(plane, "paste")["state"] == "revoked"
    answer = join(plane, token["token"])
    assert (answer.status_code, answer.json()["code"]) == (401, "token_revoked")
    missing = plane.request("DELETE", "/v1/tokens/t-none")
    assert (missing.status_code, missing.json()["code"]) == (404, "no_such_token")
    odd = plane.request("DELETE", f"/v1/tokens/{token['id']}?workers=yes")
    assert odd.status_code == 400


def test_what_can_not_be_written_did_not_happen(plane: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk makes no token, uses none up, and revokes none."""
    token = made(plane, name="paste")
    store = plane.service.shell.store
    commit = store.commit

    def full(_: object) -> None:
        raise StoreError("the disk is full")

    for method, path, given, body in (
        ("POST", "/v1/tokens", plane.endpoint.token, {"role": "join"}),
        ("POST", "/v1/join", token["token"], {"worker_id": "w1", "name": "alpha"}),
        ("DELETE", f"/v1/tokens/{token['id']}", plane.endpoint.token, None),
    ):
        monkeypatch.setattr(store, "commit", full)
        answer = ask(plane, given, method, path, json=body)
        assert (answer.status_code, answer.json()["detail"]) == (507, "the disk is full")
        monkeypatch.setattr(store, "commit", commit)
        until(lambda: not plane.do(lambda: plane.service.shell._failing), "the plane to be rebuilt")
    assert [each["state"] for each in plane.request("GET", "/v1/tokens").json()] == ["live"]
    assert join(plane, token["token"]).status_code == 201


# ---------------------------------------------------------------- limits


def test_a_token_limits_what_its_owner_holds_at_once(plane: Any) -> None:
    answer = made(plane, role="submitter", name="ana", max_running=2, max_devices=0)
    assert (answer["max_running"], answer["max_devices"]) == (2, 0)
    shown = listed(plane, "ana")
    assert (shown["max_running"], shown["max_devices"]) == (2, 0)
    assert plane.do(lambda: plane.service.shell.plane.limits) == {"ana": Limits(max_running=2, max_devices=0)}
    made(plane, role="submitter", name="bob")
    assert (listed(plane, "bob")["max_running"], listed(plane, "bob")["max_devices"]) == (None, None)


@pytest.mark.parametrize(
    "body",
    [
        {"role": "reader", "name": "r", "max_running": 1},
        {"role": "join", "name": "j", "max_devices": 1},
        {"role": "submitter", "max_running": 1},
    ],
)
def test_limits_are_of_somebody_who_submits(plane: Any, body: dict[str, Any]) -> None:
    answer = plane.request("POST", "/v1/tokens", json=body)
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")
    assert "max_running and max_devices" in answer.json()["title"]


@pytest.mark.parametrize("wrong", [{"max_running": 0}, {"max_devices": -1}, {"max_running": "2"}])
def test_a_limit_is_a_number(plane: Any, wrong: dict[str, Any]) -> None:
    answer = plane.request("POST", "/v1/tokens", json={"role": "submitter", "name": "ana"} | wrong)
    assert answer.status_code == 400
    assert f"$.{next(iter(wrong))}" in answer.json()["detail"]


# ---------------------------------------------------------------- tokens of people


def test_a_token_of_a_person_lasts_and_is_for_many_uses_unless_told(plane: Any) -> None:
    token = made(plane, role="submitter", name="alice")
    assert (token["role"], token["expires_at"], token["single_use"]) == ("submitter", None, False)
    ending = made(plane, role="reader", name="bob", expires_s=60.0)
    assert ending["expires_at"] is not None
    odd = plane.request("POST", "/v1/tokens", json={"role": "reader", "single_use": True})
    assert (odd.status_code, odd.json()["code"]) == (400, "bad_request")
    assert "only one of the role join is" in odd.json()["title"]


def test_names_of_tokens_are_their_own(plane: Any) -> None:
    made(plane, role="submitter", name="alice")
    again = plane.request("POST", "/v1/tokens", json={"role": "reader", "name": "alice"})
    assert (again.status_code, again.json()["code"]) == (409, "name_taken")
    own = plane.request("POST", "/v1/tokens", json={"role": "submitter", "name": getpass.getuser()})
    assert (own.status_code, own.json()["code"]) == (409, "name_taken")
    assert plane.request("DELETE", "/v1/tokens/alice").status_code == 204
    made(plane, role="reader", name="alice")


def why_closed(connection: Any) -> tuple[int, str]:
    """The code and the reason with which the other side closes."""
    with contextlib.suppress(ConnectionClosed):
        for _ in connection:
            pass
    return connection.close_code, connection.close_reason


def test_a_revoked_persons_sockets_are_cut_at_once(plane: Any) -> None:
    alice, bob = made(plane, role="submitter", name="alice"), made(plane, role="reader", name="bob")

    def opened(token: dict[str, Any], path: str) -> Any:
        headers = {"Authorization": f"Bearer {token['token']}"}
        url = plane.endpoint.url.replace("http", "ws", 1) + path
        return connect(url, additional_headers=headers, proxy=None, close_timeout=1)

    with opened(alice, "/v1/client") as one, opened(alice, "/v1/watch") as two, opened(bob, "/v1/watch") as other:
        for socket_ in (two, other):
            assert json.loads(socket_.recv(timeout=30))["type"] == "fleet"
        assert plane.request("DELETE", "/v1/tokens/alice").status_code == 204
        assert [why_closed(each) for each in (one, two)] == [(4401, "the token alice was revoked")] * 2
        plane.do(lambda: [watcher.changed(set()) for watcher in plane.service.shell.watchers])
        assert ask(plane, bob["token"], "GET", "/v1/health").status_code == 200
        with pytest.raises(TimeoutError):
            other.recv(timeout=0.3)  # it is still open
    with pytest.raises(InvalidStatus) as refused, opened(alice, "/v1/client"):
        pass
    assert json.loads(refused.value.response.body or b"")["code"] == "token_revoked"


def test_who_is_cut_off_and_does_not_close_is_not_heard_any_more(plane: Any) -> None:
    """A closing handshake may take its time; what is sent meanwhile does nothing."""
    token = made(plane, role="submitter", name="alice")["token"]
    url = plane.endpoint.url.replace("http", "ws", 1) + "/v1/client"
    protocol = ClientProtocol(parse_uri(url))
    with socket.create_connection(("127.0.0.1", int(plane.endpoint.url.rsplit(":", 1)[1])), timeout=30) as connection:

        def send(*messages: Any) -> None:
            protocol.send_binary(encode(messages))
            connection.sendall(b"".join(protocol.data_to_send()))

        request = protocol.connect()
        request.headers["Authorization"] = f"Bearer {token}"
        protocol.send_request(request)
        connection.sendall(b"".join(protocol.data_to_send()))
        while protocol.state is WireState.CONNECTING:
            protocol.receive_data(connection.recv(65_536))
        assert protocol.state is WireState.OPEN
        spec = JobSpec(command=CommandSpec(argv=("true",)))
        send(ClientHello(protocol=PROTOCOL_VERSION, version="0"), Submit(n=1, key="before", spec=spec))
        until(lambda: plane.request("GET", "/v1/jobs").json(), "the first job")
        assert plane.request("DELETE", "/v1/tokens/alice").status_code == 204
        send(Submit(n=2, key="after", spec=spec))  # the close frame is not answered
        while connection.recv(65_536):  # until the other side has had enough of waiting
            pass
    assert len(plane.request("GET", "/v1/jobs").json()) == 1


def test_who_waits_for_a_job_and_is_revoked_meanwhile_is_told_that(plane: Any, worker: Any) -> None:
    token = made(plane, role="reader", name="bob")["token"]
    job = plane.request("POST", "/v1/jobs", json={"key": "k", "spec": {"command": {"argv": ["true"]}}}).json()["id"]
    attempt = worker.assigned().attempt
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(ask, plane, token, "GET", f"/v1/jobs/{job}?wait=60")
        until(lambda: plane.do(lambda: job in plane.service.shell.followers), "it to wait")
        assert plane.request("DELETE", "/v1/tokens/bob").status_code == 204
        worker.begin(attempt)
        worker.finish(attempt, 0)
        answer = asked.result(60)
    assert (answer.status_code, answer.json()["code"]) == (401, "token_revoked")


def test_a_persons_socket_is_cut_when_the_token_ends(plane: Any) -> None:
    token = made(plane, role="reader", name="brief", expires_s=0.5)
    headers = {"Authorization": f"Bearer {token['token']}"}
    url = plane.endpoint.url.replace("http", "ws", 1) + "/v1/watch"
    with connect(url, additional_headers=headers, proxy=None, close_timeout=1) as socket_:
        assert why_closed(socket_) == (4401, "the token brief has expired")


@pytest.mark.parametrize(
    ("role", "name", "owner", "may"),
    [
        ("admin", "root2", "anybody", True),
        ("submitter", "alice", "alice", True),
        ("submitter", "alice", "bob", False),
        ("reader", "alice", "alice", False),
        ("", "", "anybody", True),
    ],
)
def test_whose_jobs_a_request_may_touch(role: str, name: str, owner: str, may: bool) -> None:
    handler = Handler.__new__(Handler)
    handler.owner = name
    if role:
        handler.token = Token(id="t-1", name=name, role=role, sha256=b"", created_at=0.0)
    assert handler.may_touch(owner) is may


def test_a_submitter_cancels_no_job_of_anothers_by_its_socket(plane: Any, connected: Callable[..., Joined]) -> None:
    connected(credential(plane)).next(Welcome)
    alice, bob = (made(plane, role="submitter", name=name)["token"] for name in ("alice", "bob"))
    spec = {"command": {"argv": ["true"]}}
    job = ask(plane, alice, "POST", "/v1/jobs", json={"key": "k", "spec": spec}).json()
    assert (job["owner"], job["state"]) == ("alice", "assigned")
    url = plane.endpoint.url.replace("http", "ws", 1) + "/v1/client"
    headers = {"Authorization": f"Bearer {bob}"}
    with connect(url, additional_headers=headers, proxy=None, close_timeout=1) as socket_:
        socket_.send(encode([ClientHello(protocol=PROTOCOL_VERSION, version="0"), CancelJob(n=1, job=job["id"])]))
        messages: list[Any] = []
        while len(messages) < 2:
            frame = socket_.recv(timeout=30)
            messages += to_client(frame if isinstance(frame, bytes) else frame.encode())
    assert isinstance(messages[1], Refused)
    assert messages[1].problem.status == 403
