"""Deployments for Jupyter servers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.jupyter.server import JupyterServer, Servers, jupyter_deployment


@pytest.fixture
def servers() -> Iterator[Servers]:
    """No server yet; at the end none is left, nor a control plane, nor a worker."""
    with jupyter_deployment() as deployment:
        servers = Servers(deployment)
        try:
            yield servers
        finally:
            servers.close()


@pytest.fixture(scope="session")
def server() -> Iterator[JupyterServer]:
    """A server that holds the control plane, with a worker `here`, below a base URL; it checks every route's guards.

    Tests leave it as it was.
    """
    with jupyter_deployment() as deployment:
        servers = Servers(deployment)
        try:
            made = servers.make(base_url="/user/x/").start(
                "--ServerApp.allow_unauthenticated_access=False",
                "--ServerApp.reraise_server_extension_failures=True",
            )
            made.until_state("holds")
            made.until_worker()
            yield made
        finally:
            servers.close()
