"""Who is not who they should be: wrong tokens, other versions, the same worker twice, garbage."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from gpulayer.protocol.endpoint import write_private
from gpulayer.protocol.messages import ClientHello, Follow, Heartbeat, Submit, encode
from gpulayer.protocol.types import PROTOCOL_VERSION, CellSpec, JobSpec
from gpulayer_worker.keeper.identity import alive
from gpulayer_worker.keeper.procs import process_table
from tests.integration.bad_inputs.conftest import Command, Left
from tests.support.deployment import Deployment, Worker
from tests.support.notebook import Notebook
from tests.support.processes import until
from tests.support.sitecode import BELIEVES_SOON, at_start

Run = Callable[..., Command]

# of another version than ours
OTHER_VERSION = "import gpulayer.protocol.types as types\ntypes.PROTOCOL_VERSION = {version}\n"


@pytest.fixture
def wrong(deployment: Deployment) -> Iterator[Path]:
    """A data folder whose endpoint.json has the right address and a wrong token."""
    folder = deployment.folder / "wrong"
    folder.mkdir()
    endpoint = msgspec.structs.replace(deployment.plane.endpoint, token="of-yesterday")
    write_private(folder / "endpoint.json", msgspec.json.encode(endpoint))
    yield folder
    shutil.rmtree(folder)


# ---------------------------------------------------------------- a wrong token


def test_a_cell_with_a_wrong_token(deployment: Deployment, left: Left, wrong: Path) -> None:
    """As long as nobody may start another control plane there; else a cell starts one."""
    notebook = deployment.notebook(env={"GPULAYER_DATA": str(wrong), "GPULAYER_EMBEDDED": "0"})
    for code in ("%%gpulayer\nprint('never')", "%gpulayer status"):
        (line,) = notebook.run(code).traceback.splitlines()
        assert f"{deployment.plane.endpoint.url} refuses the token of {wrong}/endpoint.json (HTTP 401)" in line
        assert "name its data folder with GPULAYER_DATA" in line
        assert "of-yesterday" not in line
    left.check()
    write_private(wrong / "endpoint.json", msgspec.json.encode(deployment.plane.endpoint))
    assert notebook.run("%%gpulayer\n1 + 1").data("text/plain") == ["2"]
    notebook.close()


def test_a_worker_with_a_wrong_token(deployment: Deployment, command: Run, wrong: Path) -> None:
    data = deployment.folder / "w-wrong"
    join = ("gpulayer_worker", "join", "--control-plane", str(wrong), "--data", str(data))
    refused = command(*join, env=deployment.env)
    assert (refused.code, len(refused.lines)) == (2, 1)
    assert f"{deployment.plane.endpoint.url} refuses the token of {wrong}/endpoint.json" in refused.lines[0]
    assert "--control-plane" in refused.lines[0]
    assert not data.exists()


# ---------------------------------------------------------------- another version


@pytest.mark.parametrize(
    ("version", "older"), [(PROTOCOL_VERSION - 1, "the client"), (PROTOCOL_VERSION + 1, "the control plane")]
)
def test_a_client_of_another_version(deployment: Deployment, left: Left, version: int, older: str) -> None:
    notebook = deployment.notebook()
    notebook.run(f"import gpulayer.client.connection as connection\nconnection.PROTOCOL_VERSION = {version}")
    (line,) = notebook.run("%%gpulayer\nprint('never')").traceback.splitlines()
    assert line == (
        "gpulayer: client and control plane differ: "
        f"protocol {version} of the client, {PROTOCOL_VERSION} here: upgrade {older}"
    )
    left.check()
    notebook.run(f"connection.PROTOCOL_VERSION = {PROTOCOL_VERSION}")
    assert notebook.run("%%gpulayer\n1 + 1").data("text/plain") == ["2"]
    notebook.close()


@pytest.mark.parametrize(
    ("version", "older"), [(PROTOCOL_VERSION - 1, "the worker"), (PROTOCOL_VERSION + 1, "the control plane")]
)
def test_a_worker_of_another_version(deployment: Deployment, command: Run, version: int, older: str) -> None:
    before = set(deployment.processes())
    other = at_start(deployment.folder / f"site-{version}", OTHER_VERSION.format(version=version))
    data = deployment.folder / f"w-{version}"
    join = ("gpulayer_worker", "join", "--control-plane", str(deployment.data), "--data", str(data), "--name", "gamma")
    refused = command(*join, env=deployment.env | other)
    assert (refused.code, len(refused.lines)) == (1, 1)
    said = f"protocol {version} of the worker, {PROTOCOL_VERSION} here: upgrade {older}"
    assert refused.lines[0] == f"gpulayer keeper: the agent gave up: refused by the control plane: {said}"
    assert {pid: line for pid, line in deployment.processes().items() if pid not in before and str(data) in line} == {}
    assert "gamma" not in {worker.name for worker in deployment.api.workers()}


# ---------------------------------------------------------------- the same worker twice


def join_of(worker: Worker, data: Path) -> tuple[str, ...]:
    """The command with which a worker joined, for another folder."""
    return tuple(str(data) if word == str(worker.data) else word for word in worker.command[2:])


def copy_of(worker: Worker, folder: Path) -> None:
    """Copy the folder of a worker that goes on meanwhile: what vanishes under the copy is not in it."""
    with contextlib.suppress(shutil.Error):
        shutil.copytree(worker.data, folder)
    assert {"worker.json", "keeper.json", "agent.json"} <= {path.name for path in folder.iterdir()}


def lives(worker: Worker) -> bool:
    """Whether the worker's keeper and agent are those that its folder names."""
    records = [json.loads((worker.data / f"{name}.json").read_bytes()) for name in ("keeper", "agent")]
    return all(alive(process_table(), record["pid"], record["start_time"]) for record in records)


def test_a_copy_of_a_workers_folder(deployment: Deployment, notebook: Notebook, command: Run) -> None:
    """It has the id, and names the processes, of the worker that it was copied from: those stay as they are."""
    worker = deployment.workers["alpha"]
    pids = worker.keeper_pid, worker.agent_pid
    copy = deployment.folder / "w-copy"
    copy_of(worker, copy)
    soon = at_start(deployment.folder / "site-soon", BELIEVES_SOON)
    refused = command(*join_of(worker, copy), env=deployment.env | soon)
    assert (refused.code, len(refused.lines)) == (2, 1)
    assert "worker alpha is connected already" in refused.lines[0]
    assert f"{copy}/worker.json; if this folder is a copy, remove that file" in refused.lines[0]
    assert (worker.keeper_pid, worker.agent_pid) == pids
    assert lives(worker)
    assert notebook.run("%%gpulayer --worker alpha\n1 + 1").data("text/plain") == ["2"]


def test_a_copy_without_the_id_is_a_worker_of_its_own(deployment: Deployment, notebook: Notebook) -> None:
    """As the line advises. It ends its own processes when it ends, and none of the other's."""
    origin = deployment.workers["alpha"]
    assert notebook.run("%%gpulayer --session stays --worker alpha\nx = 1").ok
    pids = origin.keeper_pid, origin.agent_pid
    copy = deployment.folder / "w-delta"
    copy_of(origin, copy)
    (copy / "worker.json").unlink()
    delta = deployment.worker("delta", slots=1, warm=0)
    assert notebook.run("%%gpulayer --worker delta\n1 + 1").data("text/plain") == ["2"]
    until(lambda: deployment.slots_free("delta") == 1, "the cell's processes to be gone")
    delta.stop()
    del deployment.workers["delta"]
    assert (origin.keeper_pid, origin.agent_pid) == pids
    assert lives(origin)
    assert notebook.run("%%gpulayer --session stays\nx").data("text/plain") == ["1"]


def test_a_second_worker_in_the_same_folder(deployment: Deployment, notebook: Notebook, command: Run) -> None:
    worker = deployment.workers["alpha"]
    pids = worker.keeper_pid, worker.agent_pid
    refused = command(*join_of(worker, worker.data), env=deployment.env)
    assert (refused.code, len(refused.lines)) == (3, 1)
    assert f"process {pids[0]} is the keeper of {worker.data} already" in refused.lines[0]
    assert "--data" in refused.lines[0]
    assert (worker.keeper_pid, worker.agent_pid) == pids
    assert notebook.run("%%gpulayer --worker alpha\n1 + 1").data("text/plain") == ["2"]


# ---------------------------------------------------------------- garbage on the clients' socket

SPEC = JobSpec(cell=CellSpec(code="print('never')"))
CLIENT_GARBAGE = {
    "not msgpack": b"\xc1\xff\x00garbage",
    "empty": b"",
    "no list": b"\x01",
    "an unknown message": b"\x91\x81\xa4type\xa4evil",
    "a worker's message": encode([Heartbeat()]),
    "a field of another type": encode([Submit(n=1, key="k", spec=SPEC)]).replace(b"\xa3key\xa1k", b"\xa3key\x07"),
    "cut short": encode([Submit(n=1, key="k", spec=SPEC)])[:-3],
    "good ones before a bad one": encode([Submit(n=1, key="good", spec=SPEC), Follow(n=2, job="j")])[:-1],
}  # fmt: skip


@pytest.mark.parametrize("frame", CLIENT_GARBAGE.values(), ids=CLIENT_GARBAGE.keys())
@pytest.mark.parametrize("greets", [False, True], ids=["at first", "after the hello"])
def test_garbage_closes_a_clients_connection_and_hurts_nobody_else(
    deployment: Deployment, notebook: Notebook, left: Left, frame: bytes, greets: bool
) -> None:
    endpoint = deployment.plane.endpoint
    headers = {"Authorization": f"Bearer {endpoint.token}"}
    url = endpoint.url.replace("http", "ws", 1) + "/v1/client"
    with connect(url, additional_headers=headers, proxy=None) as stray:
        if greets:
            stray.send(encode([ClientHello(protocol=PROTOCOL_VERSION, version="9")]))
            stray.recv(timeout=30)
        stray.send(frame)
        with pytest.raises(ConnectionClosed) as closed:
            stray.recv(timeout=30)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1002
    left.check()
    assert notebook.run("%%gpulayer\n1 + 1").data("text/plain") == ["2"]
