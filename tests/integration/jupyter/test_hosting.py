"""A Jupyter server holds the control plane, attaches to one, takes over, and ends without a trace."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from gpulayer.protocol.types import State
from tests.integration.jupyter.server import WORKER, JupyterServer, Servers
from tests.support.processes import end, until, wait_for_end

ENDS = {"asked to end": signal.SIGTERM, "killed": signal.SIGKILL}
WAITS = """\
import os, time
for n in range(3):
    print(n, flush=True)
while not os.path.exists({go!r}):
    time.sleep(0.05)
print('end')
"""


def started(servers: Servers, *arguments: str) -> JupyterServer:
    """A server that holds the control plane, with its local worker."""
    server = servers.start(*arguments)
    server.until_state("holds")
    server.until_worker()
    return server


def ended(server: JupyterServer) -> dict[str, Any]:
    """The one job, once it is over: its cell ends a commit before it."""

    def look() -> dict[str, Any] | None:
        (job,) = server.request("GET", "v1/jobs").json()
        return job if job["ended_at"] else None

    return until(look, "the job's end")


def test_it_hosts_a_control_plane_on_which_a_notebook_runs_cells(servers: Servers) -> None:
    server = started(servers)
    deployment = servers.deployment
    status = server.status()
    assert status["data"] == str(deployment.data)
    assert status["text"] == f"the control plane runs in this Jupyter server, its data in {deployment.data}"
    assert status["url"] is None
    assert deployment.plane.pid == server.pid
    notebook = deployment.notebook()
    assert notebook.run("%%gpulayer\nprint('there')\n6 * 7").data("text/plain") == ["42"]
    job = ended(server)
    assert (job["state"], job["worker"]) == (State.SUCCEEDED, "here")
    assert deployment.data.stat().st_mode & 0o077 == 0


def test_with_nothing_to_do_all_of_it_ends_with_the_server(servers: Servers) -> None:
    servers.deployment.env["GPULAYER_LOCAL_WORKER"] = WORKER.replace("--warm 0", "--warm 1")
    server = started(servers)
    until(lambda: "kernel/main.py" in str(servers.deployment.processes().values()), "the warm kernel")
    agent = servers.deployment.local_worker().agent_pid
    assert server.end() == 0
    wait_for_end(agent)
    until(lambda: not servers.deployment.processes(), lambda: f"all to end: {servers.deployment.processes()}")
    assert "Traceback" not in server.log


def test_it_ends_at_once_when_its_worker_has_not_joined_yet(servers: Servers) -> None:
    server = servers.start()
    server.until_state("holds")
    assert server.end() == 0
    until(lambda: not servers.deployment.processes(), lambda: f"all to end: {servers.deployment.processes()}")
    assert "Traceback" not in server.log


def test_a_running_job_goes_on_when_the_server_ends(servers: Servers) -> None:
    server = started(servers)
    deployment = servers.deployment
    go = deployment.folder / "go"
    notebook = deployment.notebook()
    notebook.start(f"%%gpulayer --session s\nkept = 1\n{WAITS.format(go=str(go))}").until_text("2\n")
    (job,) = server.request("GET", "v1/jobs").json()
    notebook.kill()
    assert server.end() == 0
    worker = deployment.local_worker()
    assert any(f"--data {worker.data}" in line for line in deployment.processes().values())
    go.touch()
    server.start()
    server.until_state("holds")
    ended = until(
        lambda: (view := server.request("GET", f"v1/jobs/{job['id']}").json())["state"] == "succeeded" and view,
        lambda: f"the job's end: {server.request('GET', 'v1/jobs').json()}\n{server.log}",
    )
    assert ended["attempts"] == 1
    notebook.start_kernel()
    notebook.run("%load_ext gpulayer")
    assert notebook.run("%%gpulayer --session s\nkept").data("text/plain") == ["1"]


@pytest.mark.parametrize("number", ENDS.values(), ids=ENDS.keys())
def test_a_second_server_attaches_and_takes_over(servers: Servers, number: int) -> None:
    first = started(servers)
    second = servers.start()
    status = second.until_state("attached")
    assert f"uses the control plane of process {first.pid}," in status["text"]
    assert second.workers() == {"here": True}  # the same control plane, through either server
    deployment = servers.deployment
    go = deployment.folder / "go"
    notebook = deployment.notebook()
    cell = notebook.start(f"%%gpulayer\n{WAITS.format(go=str(go))}").until_text("2\n")
    url = deployment.plane.endpoint.url
    first.end(number)
    second.until_state("holds")
    assert (deployment.plane.pid, deployment.plane.endpoint.url) == (second.pid, url)
    go.touch()
    assert cell.wait().text() == "0\n1\n2\nend\n"
    second.until_worker()
    job = ended(second)
    assert (job["state"], job["attempts"]) == (State.SUCCEEDED, 1)
    assert notebook.run("%%gpulayer\n1 + 1").data("text/plain") == ["2"]


def test_an_idle_first_server_takes_its_worker_with_it_and_the_second_starts_its_own(servers: Servers) -> None:
    first = started(servers)
    second = servers.start()
    second.until_state("attached")
    agent = servers.deployment.local_worker().agent_pid
    assert first.end() == 0
    second.until_state("holds")
    second.until_worker()
    assert servers.deployment.local_worker().agent_pid != agent


def test_it_attaches_to_a_control_plane_of_a_process_of_its_own(servers: Servers) -> None:
    deployment = servers.deployment
    deployment.plane.start()
    deployment.worker("alpha", warm=0)
    server = servers.start()
    server.until_state("attached")
    assert server.workers() == {"alpha": True}
    deployment.plane.kill()
    server.until_state("holds")
    server.until_worker("alpha")
    server.until_worker("here")


def test_one_that_stands_by_ends_at_once_and_leaves_the_other_alone(servers: Servers) -> None:
    first = started(servers)
    second = servers.start()
    second.until_state("attached")
    assert second.end() == 0
    assert "Traceback" not in second.log
    assert first.status()["state"] == "holds"
    assert first.workers() == {"here": True}


def test_without_a_local_worker(servers: Servers) -> None:
    server = servers.start("--GpulayerApp.local_worker=False")
    server.until_state("holds")
    assert server.workers() == {}
    assert not (servers.deployment.data / "worker").exists()


def test_what_a_killed_server_leaves_behind_serves_the_next(servers: Servers) -> None:
    server = started(servers)
    worker = servers.deployment.local_worker()
    agent = worker.agent_pid
    assert server.end(signal.SIGKILL) == -signal.SIGKILL
    server.start()
    server.until_state("holds")
    server.until_worker()
    assert worker.agent_pid == agent
    os.kill(agent, 0)  # it lives
    end(worker.keeper_pid)
