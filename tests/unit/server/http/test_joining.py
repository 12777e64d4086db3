"""Joining by a token, and the socket of a worker that brings its credential."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from gpulayer.protocol.messages import (
    Refuse,
    Welcome,
)
from tests.support.tokens import Joined, ask, credential, join, listed, made

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
    assert ask(plane, given, "GET", f"/v1/blobs/{'0' * 64}").json()["code"] == "token_revoked"


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
