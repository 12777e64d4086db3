"""What each role may do."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from gpulayer_server.http.app import routes
from gpulayer_server.http.base import MAY
from tests.support.tokens import by, credential, join, made, raw

# ---------------------------------------------------------------- who may do what

DIGEST = "0" * 64
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
