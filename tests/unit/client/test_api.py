"""The HTTP API's client."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import msgspec
import pytest

from gpulayer.client import asks
from gpulayer.client.api import Api, Tries
from gpulayer.client.asks import Away
from gpulayer.client.client import Client
from gpulayer.client.errors import ControlPlaneError, GpulayerError, RequestRefused
from gpulayer.protocol.endpoint import Endpoint
from gpulayer.protocol.types import CommandSpec, JobSpec, JobView, Problem, State

VIEW = JobView(id="k3f9", state=State.RUNNING)
HERE = Endpoint(url="http://127.0.0.1:9", token="secret", pid=1, version="0")
Answer = Callable[[httpx.Request], httpx.Response]


@pytest.fixture
def api() -> Api:
    return Api(Endpoint(url="http://127.0.0.1:9", token="secret", pid=1, version="0"))


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Callable[[Answer], list[httpx.Request]]:
    """Answer requests with a function; those that came are kept."""

    def answering(answer: Answer) -> list[httpx.Request]:
        asked: list[httpx.Request] = []

        def handle(request: httpx.Request) -> httpx.Response:
            asked.append(request)
            return answer(request)

        real = httpx.Client
        monkeypatch.setattr(httpx, "Client", lambda **o: real(transport=httpx.MockTransport(handle), **o))
        return asked

    return answering


def test_requests_carry_the_token_and_answers_are_typed(
    api: Api, answering: Callable[[Answer], list[httpx.Request]]
) -> None:
    asked = answering(lambda request: httpx.Response(200, content=msgspec.json.encode(VIEW)))
    assert api.job("k3f9") == VIEW
    assert api.cancel("k3f9", give_up=True) == VIEW
    assert [(r.method, r.url.path) for r in asked] == [("GET", "/v1/jobs/k3f9"), ("POST", "/v1/jobs/k3f9/cancel")]
    assert {r.headers["Authorization"] for r in asked} == {"Bearer secret"}
    assert asked[1].content == b'{"give_up":true}'


def test_lists(api: Api, answering: Callable[[Answer], list[httpx.Request]]) -> None:
    asked = answering(lambda request: httpx.Response(200, content=b"[]"))
    assert (api.jobs(limit=3), api.workers(), api.sessions()) == ([], [], [])
    assert asked[0].url.query == b"limit=3"


def test_a_sessions_name_may_be_anything(api: Api, answering: Callable[[Answer], list[httpx.Request]]) -> None:
    asked = answering(lambda request: httpx.Response(204))
    api.release("a/b ?é")
    assert asked[0].url.raw_path == b"/v1/sessions/a%2Fb%20%3F%C3%A9"


def test_a_problem_is_raised(api: Api, answering: Callable[[Answer], list[httpx.Request]]) -> None:
    problem = Problem(status=404, code="no_such_job", title="no job zzzz")
    answering(lambda request: httpx.Response(404, content=msgspec.json.encode(problem)))
    with pytest.raises(RequestRefused, match="no job zzzz") as refused:
        api.job("zzzz")
    assert refused.value.problem == problem


def test_nobody_there_is_one_line(api: Api) -> None:
    with pytest.raises(ControlPlaneError, match=r"http://127\.0\.0\.1:9 does not answer"):
        api.workers()


def test_a_handle_asks_when_it_is_asked(answering: Callable[[Answer], list[httpx.Request]]) -> None:
    asked = answering(lambda request: httpx.Response(200, content=msgspec.json.encode(VIEW)))
    client = Client()
    client.api = Api(find=lambda: HERE)
    with client:
        job = client.job("k3f9")
        assert (repr(job), asked) == ("<gpulayer job k3f9>", [])
        assert job.status() == VIEW
        assert [request.url.path for request in asked] == ["/v1/jobs/k3f9"]


def test_with_a_way_to_find_it_one_that_is_started_again_is_found_again(
    answering: Callable[[Answer], list[httpx.Request]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpulayer.client.api._PAUSE_S", 0.0)
    there = iter([HERE, HERE, Endpoint(url="http://127.0.0.1:10", token="new", pid=2, version="0")])
    left = [True, True]

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.port == 9 and len(asked) > 1 and left and left.pop():
            raise httpx.ConnectError("refused")
        if request.headers["Authorization"] == "Bearer secret" and len(asked) > 2:
            problem = Problem(status=401, code="unauthorized", title="wrong or missing token")
            return httpx.Response(401, content=msgspec.json.encode(problem))
        return httpx.Response(200, content=b"[]")

    asked: list[httpx.Request] = answering(answer)
    api = Api(find=lambda: next(there))
    assert api.jobs() == []
    assert api.workers() == []
    assert [(request.url.port, request.url.path) for request in asked] == [
        (9, "/v1/jobs"),
        (9, "/v1/workers"),
        (9, "/v1/workers"),
        (10, "/v1/workers"),
    ]
    api.close()


def test_before_it_ever_answered_nobody_waits_for_it(answering: Callable[[Answer], list[httpx.Request]]) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    asked = answering(answer)
    with pytest.raises(ControlPlaneError, match=r"http://127\.0\.0\.1:9 does not answer: refused"):
        Api(find=lambda: HERE).jobs()
    assert len(asked) == 1


def test_what_must_not_be_done_twice_is_not_asked_twice_once_it_may_have_arrived() -> None:
    tries = Tries(patience_s=10, clock=lambda: 0.0)
    once, often = asks.new_token("join"), asks.cancel("k3f9")
    assert tries.pause_s(httpx.ReadTimeout("slow"), often, "there") > 0
    assert tries.pause_s(httpx.ConnectError("refused"), once, "there") > 0
    with pytest.raises(ControlPlaneError, match="there does not answer: slow"):
        tries.pause_s(httpx.ReadTimeout("slow"), once, "there")


def test_patience_ends_and_a_refusal_needs_none() -> None:
    now = 0.0
    tries = Tries(patience_s=10, clock=lambda: now)
    pauses = [tries.pause_s(Away("HTTP 502"), asks.workers(), "there") for _ in range(8)]
    assert pauses == sorted(pauses)
    now = 10.0
    with pytest.raises(ControlPlaneError, match="there does not answer: HTTP 502"):
        tries.pause_s(Away("HTTP 502"), asks.workers(), "there")
    refused = RequestRefused(Problem(status=404, code="no_such_job", title="no job k3f9"))
    with pytest.raises(RequestRefused, match="no job k3f9"):
        tries.pause_s(refused, asks.job("k3f9"), "there")


def test_queries_and_names_are_quoted() -> None:
    assert asks.jobs(7, label="k=v w", state="running").path == "/v1/jobs?limit=7&state=running&label=k%3Dv+w"
    assert asks.job("a/b?c", wait_s=1.5).path == "/v1/jobs/a%2Fb%3Fc?wait=1.500"
    assert asks.logs("k3f9", index=0, stream="stdout").path == "/v1/jobs/k3f9/logs?index=0&stream=stdout"


def test_what_is_not_utf8_is_named() -> None:
    with pytest.raises(GpulayerError, match="holds bytes that are not UTF-8"):
        asks.submit("key", JobSpec(command=CommandSpec(argv=("echo", "\udcff"))))


def test_an_answer_of_somebody_else() -> None:
    with pytest.raises(ControlPlaneError, match="answered by no control plane"):
        asks.workers().answer(200, b"<html>")
    with pytest.raises(ControlPlaneError, match="refused: 404, not by a control plane"):
        asks.workers().answer(404, b"<html>")
    with pytest.raises(Away, match="HTTP 503"):
        asks.workers().answer(503, b"<html>")


def test_a_batch_that_is_too_large_for_one_request_goes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [asks.Submission(key=str(n), spec=JobSpec(command=CommandSpec(argv=("x" * 1000,)))) for n in range(7)]
    monkeypatch.setattr(asks, "BATCH_JOBS", 3)
    assert [len(part) for part in asks.in_batches(jobs)] == [3, 3, 1]
    monkeypatch.setattr(asks, "BATCH_BYTES", 2500)
    parts = list(asks.in_batches(jobs))
    assert [len(part) for part in parts] == [2, 2, 2, 1]
    monkeypatch.setattr(asks, "BATCH_BYTES", 10)  # one alone is larger: it goes as it is
    assert [len(part) for part in asks.in_batches(jobs)] == [1] * 7
    sent = [job for part in parts for job in msgspec.json.decode(asks.submit_batch(part).content or b"")["jobs"]]
    assert [job["key"] for job in sent] == list("0123456")
