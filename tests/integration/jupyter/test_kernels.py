"""The kernels that a Jupyter server starts find its control plane, and end before it does."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient

from gpulayer.protocol.endpoint import read_endpoint
from tests.integration.jupyter.server import JupyterServer, Servers
from tests.support.processes import PATIENCE_S, until


class Kernel:
    """A kernel, started by a Jupyter server as a page asks for it."""

    def __init__(self, server: JupyterServer):
        made = server.request("POST", "../api/kernels", json={"name": "python3"})
        assert made.status_code == 201, made.text
        file = server.home / "runtime" / f"kernel-{made.json()['id']}.json"
        self.client = BlockingKernelClient(connection_file=str(file))
        self.client.load_connection_file()
        self.client.start_channels(hb=False)  # a busy machine misses heartbeats
        until(self._ready, "the kernel to answer")

    def _ready(self) -> bool:
        """Whether it answers, and its output comes through: a subscription takes its time."""
        self.client.kernel_info()
        try:
            self.client.get_iopub_msg(timeout=0.2)
        except queue.Empty:
            return False
        return True

    def run(self, code: str) -> str:
        """The text of a cell that succeeds: what it printed, and its result."""
        parts: list[str] = []

        def take(message: dict[str, Any]) -> None:
            content = message["content"]
            parts.append(content.get("text", "") or content.get("data", {}).get("text/plain", ""))

        reply = self.client.execute_interactive(code, timeout=PATIENCE_S, output_hook=take, allow_stdin=False)
        assert reply["content"]["status"] == "ok", (reply["content"], parts)
        return "".join(parts)

    def close(self) -> None:
        self.client.stop_channels()
        self.client.context.destroy(linger=0)


@pytest.fixture
def kernels() -> Iterator[list[Kernel]]:
    """Kernels whose channels are closed at the end; their server ends them."""
    made: list[Kernel] = []
    yield made
    for kernel in made:
        kernel.close()


def test_a_server_ends_with_its_kernels_and_nothing_takes_its_place(servers: Servers, kernels: list[Kernel]) -> None:
    """A kernel that is connected would start a control plane of its own, as soon as this one is gone."""
    named = servers.deployment.folder / "elsewhere"
    server = servers.start(f"--GpulayerApp.data={named}")
    server.until_state("holds")
    server.until_worker()
    kernels.append(Kernel(server))
    assert kernels[0].run("import os; os.environ['GPULAYER_DATA']") == repr(str(named))
    kernels[0].run("%load_ext gpulayer")
    assert "42" in kernels[0].run("%%gpulayer\n6 * 7")
    assert not (servers.deployment.data / "endpoint.json").exists()
    endpoint = read_endpoint(named)
    assert server.end() == 0
    until(lambda: not servers.deployment.processes(), lambda: f"all to end: {servers.deployment.processes()}")
    assert read_endpoint(named) == endpoint
    assert "Traceback" not in server.log


def test_kernels_use_the_remote_control_plane_too(servers: Servers, kernels: list[Kernel]) -> None:
    deployment = servers.deployment
    deployment.plane.start()
    deployment.worker("alpha", warm=0)
    file = deployment.folder / "token"
    file.write_text(deployment.plane.endpoint.token)
    server = servers.start(f"--GpulayerApp.url={deployment.plane.endpoint.url}", f"--GpulayerApp.token_file={file}",
                           f"--GpulayerApp.data={deployment.folder / 'none'}")  # fmt: skip
    kernels.append(Kernel(server))
    kernels[0].run("%load_ext gpulayer")
    assert "42" in kernels[0].run("%%gpulayer --worker alpha\n6 * 7")
    assert [job.worker for job in deployment.api.jobs()] == ["alpha"]
    (shared,) = (server.home / "runtime").glob("gpulayer-*")
    assert shared.stat().st_mode & 0o077 == 0
    assert (shared / "endpoint.json").stat().st_mode & 0o077 == 0
    assert server.end() == 0
    assert not shared.exists()
    assert deployment.connected("alpha")
