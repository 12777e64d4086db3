"""Who may use Jupyter's routes to the control plane: whom Jupyter knows, from its own pages; and workers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gpulayer_jupyter.place import Remote
from gpulayer_jupyter.proxy import Bridge, handlers
from gpulayer_jupyter.thread import LoopThread
from gpulayer_jupyter.tunnel import Tunnels
from tests.integration.jupyter.server import JupyterServer, cookies, handshake, logged_in

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
PATHS = (
    *("status", "v1/health", "v1/worker", "v1/join", "v1/client", "v1/watch", "v1/jobs", "v1/jobs/j-1"),
    *("v1/jobs/j-1/cancel", "v1/jobs/j-1/stream", "v1/jobs/j-1/events", "v1/workers", "v1/sessions", "v1/sessions/s"),
    *("v1/tokens", "v1/tokens/t-1", "v1/bundles", "v1/blobs", "v1/blobs/fetch", "v1/blobs/" + "0" * 64, "v1/none"),
    *("v1/uploads/" + "0" * 64, "v1/jobs/batch", "v1/jobs/states", "v1/jobs/j-1/logs", "v1/openapi.json", "v1/listen"),
)
OF_WORKERS = ("v1/worker", "v1/join")
SHARED = ("v1/health", "v1/bundles", "v1/blobs", "v1/uploads/" + "0" * 64, "v1/blobs/fetch", "v1/blobs/" + "0" * 64)
SOCKETS = ("v1/client", "v1/watch", "v1/jobs/j-1/stream", "v1/jobs/j-1/events")


def routes() -> list[str]:
    """The patterns of all routes that the extension adds."""
    bridge = Bridge(place=Remote("http://127.0.0.1:1", None, __file__), thread=LoopThread("none"), tunnels=Tunnels())  # type: ignore[arg-type]
    return [pattern for pattern, _, _ in handlers(bridge)]


def opens(server: JupyterServer, path: str, headers: dict[str, str], **more: Any) -> int:
    """The status that answers a handshake."""
    return handshake(server.url(f"gpulayer/{path}", "ws"), headers, **more)


@pytest.fixture(scope="module", params=["every route is guarded", "as it is by default"])
def guarded(request: pytest.FixtureRequest, server: JupyterServer) -> Iterator[JupyterServer]:
    """A server that refuses what is not marked as open, and one with Jupyter's default; the second attaches."""
    if request.param.startswith("every"):
        yield server
        return
    other = JupyterServer(server.deployment, "default").start()
    try:
        other.until_state("attached")
        yield other
    finally:
        other.end()


def test_the_list_of_paths_is_whole() -> None:
    for pattern in routes():
        assert any(re.fullmatch(pattern, f"gpulayer/{path}") for path in PATHS), pattern
    for path in PATHS:
        assert any(re.fullmatch(pattern, f"gpulayer/{path}") for pattern in routes()), path


@pytest.mark.parametrize("path", PATHS)
def test_nobody_comes_in_without_authentication(guarded: JupyterServer, path: str) -> None:
    for method in METHODS:
        for headers in ({}, {"Authorization": "token wrong"}, {"Authorization": "Bearer wrong"}):
            answer = guarded.request(method, path, token=None, headers=headers)
            # who has no right is told so, or that nothing of that kind is there; the control plane itself says 401
            refusals = (401, 405) if path in OF_WORKERS else (403, 405)
            assert answer.status_code in refusals, (method, path, headers, answer.text)
    assert guarded.request("OPTIONS", path, token=None).content == b""
    refused = 401 if path == "v1/worker" else 403
    if path != "v1/join":
        assert opens(guarded, path, {}) == refused


@pytest.mark.parametrize("path", OF_WORKERS + SHARED)
def test_a_workers_token_is_checked_by_the_control_plane(guarded: JupyterServer, path: str) -> None:
    wrong = {"Authorization": "Bearer gl-worker-wrong"}
    method = "GET" if path in ("v1/worker", "v1/health", SHARED[-1]) else "POST"
    method = "PATCH" if path.startswith("v1/uploads") else method
    answer = guarded.request(method, path, token=None, headers=wrong)
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
    if path == "v1/worker":
        assert opens(guarded, path, wrong) == 401


@pytest.mark.parametrize("path", ["status", "v1/jobs", "v1/workers", "v1/tokens", "v1/client"])
def test_a_workers_token_opens_nothing_else(guarded: JupyterServer, path: str) -> None:
    answer = guarded.request("GET", path, token=None, headers={"Authorization": "Bearer gl-worker-wrong"})
    assert answer.status_code == 403


def test_no_route_is_without_a_guard(guarded: JupyterServer) -> None:
    """Jupyter says so of those that have none, where it has been told to refuse them."""
    said = re.findall(r"^- .* registered for (.*)$", guarded.log, re.MULTILINE)
    assert [pattern for pattern in said if "gpulayer" in pattern] == []
    assert "preventing proper authentication" not in guarded.log


# -------------------------------------------------------------------- pages of other sites


@pytest.fixture
def browser(guarded: JupyterServer) -> Iterator[httpx.Client]:
    """A browser whose user has logged in."""
    with logged_in(guarded.url()) as browser:
        yield browser


def test_a_page_of_the_server_may(guarded: JupyterServer, browser: httpx.Client) -> None:
    own = f"http://127.0.0.1:{guarded.port}"
    assert browser.get("gpulayer/v1/workers", headers={"Origin": own}).status_code == 200
    assert browser.get("gpulayer/v1/workers", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200
    made = browser.post("gpulayer/v1/jobs", headers={"X-XSRFToken": browser.cookies["_xsrf"], "Origin": own})
    assert made.json()["code"] == "bad_request"  # the control plane's word
    for path in SOCKETS:
        assert opens(guarded, path, cookies(browser), origin=own) == 101


@pytest.mark.parametrize("origin", ["https://evil.example", "http://127.0.0.1:1", "null"])
def test_a_page_of_another_site_may_not(guarded: JupyterServer, browser: httpx.Client, origin: str) -> None:
    foreign = {"Origin": origin, "X-XSRFToken": browser.cookies["_xsrf"]}
    for method, path in (("GET", "status"), ("GET", "v1/workers"), ("GET", "v1/health"), ("GET", "v1/blobs/x")):
        assert browser.request(method, f"gpulayer/{path}", headers=foreign).status_code == 403
    for method, path in (("POST", "v1/jobs"), ("POST", "v1/blobs"), ("DELETE", "v1/sessions/s"), ("POST", "v1/tokens")):
        assert browser.request(method, f"gpulayer/{path}", headers=foreign).status_code in (403, 404)
    for path in SOCKETS:
        assert opens(guarded, path, cookies(browser), origin=origin) == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_page_of_another_site_loads_nothing_as_its_own_either(
    guarded: JupyterServer, browser: httpx.Client, site: str
) -> None:
    for path in ("status", "v1/workers", "v1/health"):
        assert browser.get(f"gpulayer/{path}", headers={"Sec-Fetch-Site": site}).status_code == 403


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "v1/jobs"),
        ("POST", "v1/tokens"),
        ("DELETE", "v1/sessions/s"),
        ("POST", "v1/blobs"),
        ("POST", "v1/join"),
    ],
)
def test_a_form_of_another_site_changes_nothing(browser: httpx.Client, method: str, path: str) -> None:
    """It has the cookie, but not the token that stands in it. A worker's route looks at no cookie."""
    assert browser.request(method, f"gpulayer/{path}").status_code == (401 if path == "v1/join" else 403)


@pytest.mark.parametrize("path", OF_WORKERS)
def test_a_browser_is_no_worker(guarded: JupyterServer, browser: httpx.Client, path: str) -> None:
    own = f"http://127.0.0.1:{guarded.port}"
    assert browser.request("GET" if path == "v1/worker" else "POST", f"gpulayer/{path}",
                           headers={"Origin": own}).status_code == 403  # fmt: skip
    assert (
        browser.get("gpulayer/v1/health", headers={"Origin": own, "Authorization": "Bearer gl-worker-x"}).status_code
        == 403
    )


def test_a_name_of_another_machine_that_leads_here_is_refused(guarded: JupyterServer) -> None:
    """A page whose name was made to lead to loopback, after it was loaded."""
    for path in ("status", "v1/workers", "v1/worker", "v1/health"):
        answer = guarded.request("GET", path, headers={"Host": f"evil.example:{guarded.port}"})
        assert answer.status_code == 403
