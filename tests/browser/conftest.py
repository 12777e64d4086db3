"""JupyterLab in Chromium: one server for the tests that leave it as it was; a page for each."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.support.deployment import Deployment
from tests.support.lab import BUILT, CHROMIUM, CHROMIUM_FLAGS, Lab, NotebookPage
from tests.support.processes import PATIENCE_S, until

LOAD = "%load_ext gpulayer"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if not os.path.exists(CHROMIUM):
        pytest.skip(f"no {CHROMIUM} on this machine")
    assert (BUILT / "package.json").exists(), "the panel is not built: make setup"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A page with nothing in its storage; of a test that fails a picture is kept."""
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    context.set_default_timeout(PATIENCE_S * 1000)
    page = context.new_page()
    yield page
    if getattr(request.node, "failed", False):
        path = Path(tempfile.gettempdir()) / f"gpulayer-{request.node.name[:60]}.png"
        page.screenshot(path=path)
        print(f"what the page showed: {path}")
    context.close()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome: Any = yield
    if outcome.get_result().failed:
        item.failed = True  # type: ignore[attr-defined]


@pytest.fixture
def new_lab() -> Iterator[Callable[..., Lab]]:
    """Starts servers of a deployment of the test's own; the local worker is waited for."""
    deployments: list[tuple[Deployment, list[Lab]]] = []

    def new(**options: Any) -> Lab:
        if not deployments:
            deployments.append((Deployment(), []))
        deployment, labs = deployments[0]
        lab = Lab(deployment, f"lab{len(labs)}", **options)
        labs.append(lab)
        start(deployment, lab)
        return lab

    yield new
    for deployment, labs in deployments:
        close(deployment, labs)


@pytest.fixture(scope="session")
def shared_lab() -> Iterator[Lab]:
    deployment = Deployment()
    lab = Lab(deployment)
    try:
        start(deployment, lab)
        yield lab
    finally:
        close(deployment, [lab])


@pytest.fixture
def lab(shared_lab: Lab) -> Iterator[Lab]:
    """The shared server; after the test no job lives."""
    yield shared_lab
    api = shared_lab.deployment.api
    for job in api.jobs(limit=50):
        if not job.terminal:
            api.cancel(job.id)
    for session in api.sessions():
        api.release(session.name)
    until(lambda: all(worker.slots_free == worker.slots for worker in api.workers()), "free slots")


@pytest.fixture
def opened(page: Page, lab: Lab, request: pytest.FixtureRequest) -> Callable[..., NotebookPage]:
    """Opens a notebook with these cells, gpulayer loaded by its first one."""
    count = iter(range(100))

    def open_(*cells: str, **files: str) -> NotebookPage:
        name = f"{request.node.name[:30].rstrip('[')}{next(count)}"
        notebook = NotebookPage(page, lab, lab.notebook(name, LOAD, *cells, **files)).open()
        notebook.run(0)
        notebook.await_end(0)
        return notebook

    return open_


def start(deployment: Deployment, lab: Lab) -> None:
    """Start a server, and wait for the local worker of the control plane that it hosts or attaches to."""
    lab.start()
    until(lambda: (deployment.data / "endpoint.json").exists(), lambda: f"a control plane:\n{lab.log}")
    if "local" not in deployment.workers:
        deployment.local_worker()
    until(lambda: any(w.connected for w in deployment.api.workers()), lambda: f"the local worker:\n{lab.log}")


def close(deployment: Deployment, labs: list[Lab]) -> None:
    """End all of it."""
    try:
        for lab in labs:
            lab.stop()
    finally:
        deployment.close()
