"""The HTTP API's odds and ends; with real workers it is tested in tests/integration/test_api.py."""

from __future__ import annotations

from typing import Any

import pytest

from gpulayer.protocol.messages import NotStarted, SessionEnded, Submit
from gpulayer.protocol.types import CellSpec, JobSpec
from tests.support.processes import until


def submit(plane: Any, key: str, **more: Any) -> dict[str, Any]:
    answer = plane.request("POST", "/v1/jobs", json={"key": key, "spec": {"cell": {"code": "1"}, **more}})
    assert answer.status_code == 201
    return answer.json()


def test_health_tells_version_and_epoch(plane: Any) -> None:
    answer = plane.request("GET", "/v1/health").json()
    assert answer["epoch"] == plane.endpoint.epoch
    assert answer["version"]


@pytest.mark.parametrize("path", ["/", "/v1", "/v2/jobs", "/v1/jobs/a/b/c"])
def test_any_other_path_is_a_problem(plane: Any, path: str) -> None:
    answer = plane.request("GET", path)
    assert (answer.status_code, answer.json()["code"]) == (404, "no_such_path")
    assert path in answer.json()["detail"]


@pytest.mark.parametrize(("method", "path"), [("PUT", "/v1/jobs"), ("DELETE", "/v1/jobs/abcd"), ("POST", "/v1/health")])
def test_a_method_that_a_path_does_not_have_is_a_problem(plane: Any, method: str, path: str) -> None:
    answer = plane.request(method, path)
    assert answer.status_code == 405
    assert answer.headers["content-type"] == "application/problem+json"


def test_unknown_fields_are_ignored_so_that_versions_may_differ(plane: Any) -> None:
    assert submit(plane, "key", colour="blue")["state"] == "rejected"


def test_jobs_are_listed_newest_first_and_narrowed(plane: Any) -> None:
    names = [submit(plane, f"key{n}", notebook="/a.ipynb" if n % 2 else "/b.ipynb")["id"] for n in range(4)]
    listed = plane.request("GET", "/v1/jobs").json()
    assert [job["id"] for job in listed] == names[::-1]
    assert [job["id"] for job in plane.request("GET", "/v1/jobs?limit=2").json()] == names[:1:-1]
    narrowed = plane.request("GET", "/v1/jobs?notebook=/a.ipynb").json()
    assert [job["id"] for job in narrowed] == [names[3], names[1]]


def test_a_rejected_job_tells_why_also_later(plane: Any, worker: Any) -> None:
    job = submit(plane, "key", requirements={"accelerator": "cuda"})
    later = plane.request("GET", f"/v1/jobs/{job['id']}").json()
    assert later == job
    assert later["reasons"][0]["text"] == "needs 1 usable cuda device, worker has 0 (CPU only)"


def test_workers_and_sessions_are_shown(plane: Any, worker: Any, client: Any) -> None:
    client.say(Submit(n=1, key="k", spec=JobSpec(cell=CellSpec(code="1", session="train"))))
    assign = worker.assigned()
    [shown] = plane.request("GET", "/v1/workers").json()
    assert (shown["name"], shown["connected"], shown["slots"], shown["slots_free"]) == ("alpha", True, 4, 3)
    [session] = plane.request("GET", "/v1/sessions").json()
    assert (session["name"], session["worker"], session["running"]) == ("train", "alpha", assign.job)
    worker.say(NotStarted(attempt=assign.attempt, reason="x"), SessionEnded(session=assign.session, reason="x"))


def test_a_session_is_released_once_its_worker_says_so(plane: Any, worker: Any, client: Any) -> None:
    from gpulayer.protocol.messages import EndSession

    client.say(Submit(n=1, key="k", spec=JobSpec(cell=CellSpec(code="1", session="a b/c"))))
    assign = worker.assigned()
    worker.begin(assign.attempt)
    worker.finish(assign.attempt, 0)
    until(lambda: "running" not in plane.request("GET", "/v1/sessions").json()[0], "the cell's end")
    assert plane.request("DELETE", "/v1/sessions/a%20b%2Fc").status_code == 204
    assert worker.until(EndSession).session == assign.session
    assert len(plane.request("GET", "/v1/sessions").json()) == 1  # its processes are there still
    worker.say(SessionEnded(session=assign.session, reason="released"))
    until(lambda: plane.request("GET", "/v1/sessions").json() == [], "the session's end")


def test_a_body_that_is_too_large_is_refused_and_the_next_request_answered(plane: Any) -> None:
    import httpx

    try:
        status = plane.request("POST", "/v1/jobs", content=b" " * 200_000_000).status_code
    except httpx.HTTPError:
        status = 413  # the connection was closed while the body was on its way
    assert status in (400, 413)
    assert plane.request("GET", "/v1/health").status_code == 200
