"""JupyterHub's single-user server: the panel's routes for its user, and a machine that joins through the hub."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest

from tests.integration.jupyter.hub import PASSWORD, TOKEN, USER, Hub, hub_is_missing
from tests.integration.jupyter.server import handshake, jupyter_deployment, websocket
from tests.integration.jupyter.test_joining import join, runs
from tests.support.deployment import Deployment
from tests.support.processes import PATIENCE_S, until

pytestmark = pytest.mark.skipif(bool(hub_is_missing()), reason=hub_is_missing())
OURS = f"user/{USER}/gpulayer"


@pytest.fixture(scope="module")
def deployment() -> Iterator[Deployment]:
    """A folder for the hub and what it starts."""
    with jupyter_deployment() as deployment:
        yield deployment


@pytest.fixture(scope="module")
def hub(deployment: Deployment) -> Iterator[Hub]:
    """A hub, whose user's server runs."""
    with Hub(deployment) as hub:
        hub.start()
        yield hub
        for notebook in deployment.notebooks:
            notebook.close()


@pytest.fixture
def browser(hub: Hub) -> Iterator[httpx.Client]:
    """A browser in which the user has logged in at the hub, and has opened a page of the server."""
    with httpx.Client(base_url=hub.url, trust_env=False, timeout=PATIENCE_S, follow_redirects=True) as client:
        client.get("hub/login")
        form = {"username": USER, "password": PASSWORD, "_xsrf": client.cookies["_xsrf"]}
        logged_in = client.post("hub/login", data=form, params={"next": f"/user/{USER}/files/"})
        assert str(logged_in.url).startswith(hub.server), logged_in.text
        yield client


def opens(hub: Hub, path: str, headers: dict[str, str], origin: str | None = None) -> int:
    """The status that answers a handshake."""
    return handshake((hub.url + path).replace("http", "ws", 1), headers, origin=origin)


def workers(hub: Hub) -> dict[str, bool]:
    return {worker["name"]: worker["connected"] for worker in hub.request("GET", f"{OURS}/v1/workers").json()}


def test_the_users_server_holds_the_control_plane(hub: Hub) -> None:
    until(lambda: workers(hub) == {"here": True}, lambda: f"the local worker:\n{hub.log}")
    with websocket(
        hub.server.replace("http", "ws", 1) + "gpulayer/v1/watch", {"Authorization": f"token {TOKEN}"}
    ) as one:
        assert json.loads(one.recv(PATIENCE_S))["type"] == "fleet"


def test_nobody_else_comes_in(hub: Hub) -> None:
    for path in ("status", "v1/workers", "v1/health", "v1/tokens"):
        for token in ("", "wrong"):
            assert hub.request("GET", f"{OURS}/{path}", token=token).status_code == 403
    assert opens(hub, f"{OURS}/v1/watch", {}) == 403
    for path in ("v1/worker", "v1/health"):
        wrong = {"Authorization": "Bearer gl-worker-wrong"}
        assert hub.request("GET", f"{OURS}/{path}", token="", headers=wrong).status_code == 401
    assert opens(hub, f"{OURS}/v1/worker", {"Authorization": "Bearer gl-worker-wrong"}) == 401


def test_a_page_of_the_server_may_and_one_of_another_site_may_not(hub: Hub, browser: httpx.Client) -> None:
    held = {cookie.name: cookie.value or "" for cookie in browser.cookies.jar if cookie.path == f"/user/{USER}/"}
    header = {"Cookie": "; ".join(f"{name}={value}" for name, value in held.items())}
    own = hub.url.rstrip("/")
    assert browser.get(f"{OURS}/status").json()["state"] == "holds"
    for origin, expected in ((own, 101), ("https://evil.example", 403)):
        assert opens(hub, f"{OURS}/v1/client", header, origin) == expected
    assert browser.post(f"{OURS}/v1/jobs", headers={"Origin": "https://evil.example"}).status_code in (403, 404)
    assert browser.post(f"{OURS}/v1/jobs").status_code == 403  # a form of another site has no token for it
    token = next(
        cookie.value for cookie in browser.cookies.jar if (cookie.name, cookie.path) == ("_xsrf", f"/user/{USER}/")
    )
    taken = browser.post(f"{OURS}/v1/jobs", headers={"X-XSRFToken": token or "", "Origin": own})
    assert taken.json()["code"] == "bad_request"  # the control plane's word


def test_a_machine_joins_through_the_hub(hub: Hub, deployment: Deployment) -> None:
    made = hub.request("POST", f"{OURS}/v1/tokens", json={"role": "join", "name": "for a test"})
    worker = join(deployment, hub.url + OURS, made.json()["token"], "far")
    until(lambda: workers(hub).get("far"), lambda: f"the worker to join: {worker.log}\n{hub.log}")
    runs(deployment, "far")
    assert made.json()["token"] not in hub.log
    worker.stop()
    del deployment.workers["far"]
