"""The HTTP API's client."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import msgspec
import pytest

from gpulayer.client.api import Api
from gpulayer.client.errors import ControlPlaneError, RequestRefused
from gpulayer.client.job import Job
from gpulayer.protocol.endpoint import Endpoint
from gpulayer.protocol.types import JobView, Problem, State

VIEW = JobView(id="k3f9", state=State.RUNNING)
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


def test_a_handle_asks_when_it_is_asked() -> None:
    asked: list[str] = []

    def look(name: str) -> JobView:
        asked.append(name)
        return VIEW

    job = Job("k3f9", look)
    assert (repr(job), asked) == ("<gpulayer job k3f9>", [])
    assert job.status() == VIEW
    assert asked == ["k3f9"]
