"""One deployment for the tests that leave it as it was: a control plane, two workers, notebooks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.deployment import Deployment
from tests.support.notebook import Notebook
from tests.support.processes import until

FILES = {"train.py": 'LR = 0.1\n\n\ndef step(n):\n    """One step."""\n    return 1 / n\n'}


@pytest.fixture
def plane() -> Iterator[Deployment]:
    """A control plane of the test's own, which it may kill."""
    with Deployment() as deployment:
        deployment.plane.start()
        yield deployment


@pytest.fixture(scope="session")
def shared() -> Iterator[Deployment]:
    """A control plane with two workers: alpha takes what comes, beta what names it (it has one slot)."""
    with Deployment() as deployment:
        deployment.plane.start()
        deployment.worker("alpha", slots=4, warm=2)
        deployment.worker("beta", slots=1, warm=0)
        yield deployment


def tidy(shared: Deployment) -> None:
    """No job lives, no session is open, every slot is free, and the two workers are all that is connected."""
    for name in shared.workers.keys() - {"alpha", "beta"}:
        shared.workers.pop(name).stop()
    api = shared.api
    for job in api.jobs(limit=50):
        if not job.terminal:
            api.cancel(job.id)
    for session in api.sessions():
        api.release(session.name)

    def is_tidy() -> bool:
        workers = api.workers()
        free = all(worker.slots_free == worker.slots for worker in workers)
        return free and {worker.name for worker in workers if worker.connected} == {"alpha", "beta"}

    until(
        is_tidy,
        lambda: f"free slots: {api.workers()} {api.sessions()} {[job for job in api.jobs() if not job.terminal]}",
    )


@pytest.fixture(scope="module")
def tidied(shared: Deployment) -> Deployment:
    """The shared deployment, whatever the module before has left in it: sessions of its own, workers just going."""
    tidy(shared)
    return shared


@pytest.fixture
def deployment(tidied: Deployment) -> Iterator[Deployment]:
    """The shared deployment; after the test no job lives and every slot is free."""
    yield tidied
    tidy(tidied)


@pytest.fixture(scope="session")
def shared_notebook(shared: Deployment) -> Notebook:
    """A notebook whose folder nobody changes."""
    return shared.notebook(FILES)


@pytest.fixture
def notebook(deployment: Deployment, shared_notebook: Notebook) -> Iterator[Notebook]:
    """The shared notebook, with gpulayer loaded; a test that left a cell running leaves it a new kernel."""
    yield shared_notebook
    if shared_notebook.busy:
        shared_notebook.start_kernel()
        shared_notebook.run("%load_ext gpulayer")


@pytest.fixture(scope="session")
def stock(shared: Deployment) -> Notebook:
    """A kernel without gpulayer, in a folder with the same files."""
    return shared.notebook(FILES, extension=False)
