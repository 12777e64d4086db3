"""Tokens over HTTP, and what each role may do."""

from __future__ import annotations

import contextlib
import getpass
import itertools
import json
import re
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from websockets.client import ClientProtocol
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.protocol import State as WireState
from websockets.sync.client import connect
from websockets.uri import parse_uri

from gpulayer.protocol.messages import (
    CancelJob,
    ClientHello,
    Hello,
    Order,
    Refuse,
    Refused,
    Submit,
    Welcome,
    encode,
    to_client,
    to_worker,
)
from gpulayer.protocol.types import PROTOCOL_VERSION, CommandSpec, Inventory, JobSpec
from gpulayer_server.auth import Token
from gpulayer_server.core.state import Limits
from gpulayer_server.http.app import routes
from gpulayer_server.http.base import MAY, Handler
from gpulayer_server.store.database import StoreError
from tests.support.processes import until

INVENTORY = Inventory(host="h", os="linux", arch="x", cpu_cores=1, ram_bytes=1, python="3")
DIGEST = "0" * 64


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


@pytest.fixture
def connected(plane: Any) -> Any:
    """Makes workers that are connected by their credentials."""
    opened: list[Joined] = []

    def new(*arguments: Any, **more: Any) -> Joined:
        opened.append(Joined(plane, *arguments, **more))
        return opened[-1]

    yield new
    for worker in opened:
        worker.close()


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


# ---------------------------------------------------------------- joining


def test_a_join_token_is_exchanged(plane: Any, connected: Callable[..., Joined]) -> None:
    token = made(plane, name="paste")
    answer = join(plane, token["token"])
    assert answer.status_code == 201
    assert answer.headers["Cache-Control"] == "no-store"
    assert set(answer.json()) == {"credential"}
    given = answer.json()["credential"]
    assert given.startswith("gl-worker-")
    assert (listed(plane, "paste")["state"], listed(plane, "paste")["used_by"]) == ("used", "alpha")
    assert ask(plane, given, "GET", "/v1/health").json()["connected"] is False
    connected(given).next(Welcome)
    assert [worker["name"] for worker in plane.request("GET", "/v1/workers").json()] == ["alpha"]
    assert ask(plane, given, "GET", "/v1/health").json()["connected"] is True
    assert "connected" not in plane.request("GET", "/v1/health").json()  # that token is no worker's


def test_used_by_is_the_name_that_people_see(plane: Any, worker: Any, connected: Callable[..., Joined]) -> None:
    token = made(plane, name="paste")  # `worker` is another one that is called alpha
    given = join(plane, token["token"], "w9", "alpha").json()["credential"]
    connected(given, "w9", name="alpha").next(Welcome)
    assert listed(plane, "paste")["used_by"] == "alpha-2"


def test_a_token_that_was_used_is_refused(plane: Any) -> None:
    token = made(plane, name="paste")["token"]
    assert join(plane, token).status_code == 201
    answer = join(plane, token, "w2", "beta")
    assert (answer.status_code, answer.json()["code"]) == (401, "token_used")
    assert answer.json()["title"] == "the token paste was used already, by alpha"
    assert join(plane, token).status_code == 201  # the same worker: the answer to it was lost, for all we know


def test_a_token_that_expired_is_refused(plane: Any) -> None:
    token = made(plane, expires_s=60)["token"]
    clock = plane.service.shell.clock
    plane.do(lambda: setattr(clock, "_anchor", clock._anchor + 61))
    answer = join(plane, token)
    assert (answer.status_code, answer.json()["code"]) == (401, "token_expired")


def test_nobody_takes_the_place_of_a_worker_that_is_connected(plane: Any, worker: Any) -> None:
    token = made(plane, name="paste")
    answer = join(plane, token["token"], "w1", "mallory")
    assert (answer.status_code, answer.json()["code"]) == (409, "worker_connected")
    assert listed(plane, "paste")["state"] == "live"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b'{"worker_id":"w1"}',
        b'{"worker_id":"","name":"a"}',
        b'{"worker_id":"../w1","name":"a"}',
        b'{"worker_id":"w1\\n","name":"a"}',
        b'{"worker_id":"w1","name":""}',
        b'{"worker_id":"w1","name":"a\\u0000"}',
        b'{"worker_id":1,"name":"a"}',
    ],
)
def test_who_does_not_say_who_it_is_does_not_join(plane: Any, body: bytes) -> None:
    token = made(plane, name="paste")
    answer = ask(plane, token["token"], "POST", "/v1/join", content=body)
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")
    assert listed(plane, "paste")["state"] == "live"


# ---------------------------------------------------------------- the worker's socket


def test_a_credential_is_one_workers_own(plane: Any, connected: Callable[..., Joined]) -> None:
    stranger = connected(credential(plane), "w2", name="beta")
    refusal = stranger.next(Refuse)
    assert (refusal.code, refusal.retry) == ("another_worker", False)
    assert "the credential of worker alpha is not that of beta" in refusal.text
    stranger.until_closed()
    assert plane.request("GET", "/v1/workers").json() == []


def test_a_worker_that_joined_is_not_a_local_one(plane: Any, connected: Callable[..., Joined]) -> None:
    connected(credential(plane), local=True).next(Welcome)
    assert [worker.get("local", False) for worker in plane.request("GET", "/v1/workers").json()] == [False]


def test_a_revoked_worker_is_cut_off_at_once_and_stays_out(plane: Any, connected: Callable[..., Joined]) -> None:
    given = credential(plane)
    worker, other = connected(given), connected(credential(plane, "w2", "beta"), "w2", name="beta")
    worker.next(Welcome)
    other.next(Welcome)
    plane.request("DELETE", f"/v1/tokens/{listed(plane, 'alpha')['id']}")
    refusal = worker.next(Refuse)
    assert (refusal.code, refusal.retry) == ("token_revoked", False)
    worker.until_closed()
    shown = {each["name"]: each["connected"] for each in plane.request("GET", "/v1/workers").json()}
    assert shown == {"alpha": False, "beta": True}
    with pytest.raises(InvalidStatus) as refused:
        connected(given)
    assert refused.value.response.status_code == 401
    assert json.loads(refused.value.response.body or b"")["code"] == "token_revoked"
    assert ask(plane, given, "GET", f"/v1/blobs/{DIGEST}").json()["code"] == "token_revoked"


def test_workers_stay_when_their_join_token_is_revoked_unless_said_otherwise(
    plane: Any, connected: Callable[..., Joined]
) -> None:
    token = made(plane, single_use=False)
    worker = connected(join(plane, token["token"]).json()["credential"])
    worker.next(Welcome)
    plane.request("DELETE", f"/v1/tokens/{token['id']}")
    assert [each["connected"] for each in plane.request("GET", "/v1/workers").json()] == [True]
    plane.request("DELETE", f"/v1/tokens/{token['id']}?workers=true")
    assert worker.next(Refuse).code == "token_revoked"
    worker.until_closed()


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


# ---------------------------------------------------------------- who may do what

PATHS = [
    "/v1/health", "/v1/worker", "/v1/client", "/v1/watch", "/v1/jobs", "/v1/jobs/j1", "/v1/jobs/j1/cancel",
    "/v1/jobs/j1/stream", "/v1/jobs/j1/events", "/v1/workers", "/v1/sessions", "/v1/sessions/s", "/v1/tokens",
    "/v1/tokens/t-1", "/v1/join", "/v1/listen", "/v1/openapi.json", "/v1/loop", "/metrics",
    "/v1/jobs/batch", "/v1/jobs/states", "/v1/jobs/j1/tasks", "/v1/jobs/j1/attempts", "/v1/jobs/j1/outputs",
    "/v1/explain", "/v1/explain/", "/v1/jobs/j1/logs", f"/v1/uploads/{DIGEST}", "/v1/jobs/",
    "/v1/jobs/batch/cancel/x", "/v1/bundles",
    "/v1/blobs", "/v1/blobs/fetch", f"/v1/blobs/{DIGEST}",
    "/v1/maps", "/v1/maps/j1.1", "/v1/maps/j1.1/cancel", "/v1/maps/j1.1/results", "/v1/maps/j1.1/x", "/v1/maps/",
    "/", "/v1", "/v1/nothing", "/v1/joins", "/v1/join/", "/v1/workers/", "/v1/blobsy", "/v1/health/x", "/x/v1/health",
]  # fmt: skip
METHODS = ["GET", "POST", "PUT", "DELETE", "PATCH"]
JOBS_READ = {"/v1/jobs", *(f"/v1/jobs/{each}" for each in ("j1", "batch", "states", "batch/cancel/x"))}
JOBS_READ |= {f"/v1/jobs/j1/{each}" for each in ("cancel", "stream", "events", "tasks", "attempts", "outputs", "logs")}
BLOB = f"/v1/blobs/{DIGEST}"
READS = {("GET", path) for path in JOBS_READ}
READS |= {("GET", f"/v1/{each}") for each in ("health", "openapi.json", "workers", "watch", "sessions")}
READS |= {("GET", f"/v1/maps{each}") for each in ("", "/j1.1", "/j1.1/results")}
READS |= {("GET", BLOB), ("POST", "/v1/jobs/states"), ("POST", "/v1/blobs/fetch"), ("POST", "/v1/explain")}
SUBMITS = {("POST", f"/v1/{each}") for each in ("jobs", "jobs/batch", "jobs/j1/cancel", "blobs", "bundles")}
SUBMITS |= {("GET", f"/v1/uploads/{DIGEST}"), ("PATCH", f"/v1/uploads/{DIGEST}")}
SUBMITS |= {("DELETE", "/v1/sessions/s"), ("GET", "/v1/client"), ("POST", "/v1/maps/j1.1/cancel")}
WORKS = {(method, path) for method in METHODS for path in ("/v1/blobs", "/v1/blobs/fetch", BLOB, "/v1/bundles")}
WORKS |= {(method, f"/v1/uploads/{DIGEST}") for method in METHODS} | {("GET", "/v1/health"), ("GET", "/v1/worker")}

#: As the design has it; written here a second time on purpose.
RIGHTS: dict[str, set[tuple[str, str]]] = {
    "metrics": {("GET", "/metrics"), ("GET", "/v1/health")},
    "join": {("POST", "/v1/join")},
    "worker": WORKS,
    "reader": READS,
    "submitter": READS | SUBMITS,
}


def needed(method: str, path: str) -> str:
    """The roles that are named to whoever may not."""
    names = [role for role, rights in RIGHTS.items() if role != "worker" and (method, path) in rights]
    names += [] if (method, path) == ("POST", "/v1/join") else ["admin"]
    return f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else names[0]


def test_every_route_is_among_those_that_are_tried() -> None:
    """A new route is the admin's alone until the table says otherwise; it is to be named here too."""
    for pattern, handler in routes():
        assert any(re.fullmatch(pattern, path) for path in PATHS), f"{pattern} ({handler.__name__}) is not tried"


@pytest.mark.parametrize("role", RIGHTS)
def test_a_role_may_do_what_the_table_says_and_nothing_else(plane: Any, role: str) -> None:
    token = credential(plane) if role == "worker" else made(plane, role=role, expires_s=None, single_use=False)["token"]
    with by(plane, token) as client:
        for method, path in itertools.product(METHODS, PATHS):
            answer = client.request(method, path)
            if (method, path) in RIGHTS[role]:
                assert answer.status_code not in (401, 403), (method, path)
                continue
            assert (answer.status_code, answer.json()["code"]) == (403, "wrong_role"), (method, path)
            what = "joining with a machine" if path == "/v1/join" else f"{method} {path}"
            said = f"{what} needs a token of the role {needed(method, path)}, which `gpulayer token create"
            assert said in answer.json()["detail"]
            assert f"the role {role}" in answer.json()["title"]


HEADS = {
    "metrics": set[str](),
    "join": set[str](),
    "worker": {"/v1/blobs", "/v1/blobs/fetch", BLOB, "/v1/bundles", f"/v1/uploads/{DIGEST}"},
    "reader": {BLOB},
    "submitter": {BLOB, f"/v1/uploads/{DIGEST}"},
}


@pytest.mark.parametrize("role", HEADS)
def test_what_a_role_may_ask_the_head_of(plane: Any, role: str) -> None:
    token = credential(plane) if role == "worker" else made(plane, role=role, expires_s=None, single_use=False)["token"]
    with by(plane, token) as client:
        for path in PATHS:
            status = client.request("HEAD", path).status_code
            assert (status != 403) == (path in HEADS[role]), (path, status)
            assert status != 401


def test_the_token_of_endpoint_json_joins_nobody(plane: Any) -> None:
    for token in (plane.endpoint.token, made(plane, role="admin")["token"]):
        answer = join(plane, token)
        assert (answer.status_code, answer.json()["code"]) == (403, "wrong_role")
        assert answer.json()["detail"] == (
            "joining with a machine needs a token of the role join, which `gpulayer token create --role join` makes on "
            "the control plane's machine"
        )


@pytest.mark.parametrize(
    "path", ["/v1/blobs/../jobs", "/v1/blobs/%2e%2e/jobs", "/v1/blobs//v1/jobs", "/v1/blobs?/v1/jobs"]
)
def test_no_path_leads_from_what_a_worker_may_to_what_it_may_not(plane: Any, path: str) -> None:
    assert raw(plane, f"GET {path}", f"Bearer {credential(plane)}") in (404, 405)


@pytest.mark.parametrize(
    "header", ["", "Bearer ", "Bearer", "bearer {}", "{}", "Basic {}", "Bearer {} ", "Bearer  {}", "Bearer {}x", "é{}"]
)
@pytest.mark.parametrize("role", ["admin", "worker"])
def test_a_token_that_is_not_brought_as_it_must_be_is_none(plane: Any, header: str, role: str) -> None:
    token = plane.endpoint.token if role == "admin" else credential(plane)
    assert raw(plane, "GET /v1/health", header.format(token)) == (200 if header == "Bearer {} " else 401)


def test_without_a_token_every_route_is_shut(plane: Any) -> None:
    with by(plane, "") as client:
        for method, path in itertools.product(METHODS, PATHS):
            answer = client.request(method, path)
            assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized"), (method, path)
        assert {client.request("HEAD", path).status_code for path in PATHS} == {401}


def test_the_table_names_each_role() -> None:
    assert set(MAY) == {*RIGHTS, "admin"}
    assert MAY["admin"].fullmatch("GET /whatever/comes")
    assert not MAY["admin"].fullmatch("POST /v1/join")


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
