"""Large files, there and back, through real processes: no memory, no standstill, and what breaks goes on."""

from __future__ import annotations

import hashlib
import os
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from gpulayer.protocol.types import JobView
from gpulayer.source import FileEntry, Manifest
from gpulayer.source.blobs import Blobs
from gpulayer.source.download import fetch_blob
from gpulayer.source.partial import hash_of_file
from gpulayer.source.upload import send_blob
from gpulayer_worker.workspace import FetchError, Workspaces
from tests.support.deployment import Deployment
from tests.support.processes import until

MB = 1 << 20
SIZE = 240 * MB
GROWN_AT_MOST = 64 * MB


@pytest.fixture
def deployment() -> Iterator[Deployment]:
    with Deployment() as made:
        made.plane.start()
        yield made


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A file that does not fit where nothing should hold it, and its digest."""
    path = tmp_path_factory.mktemp("large") / "file"
    hasher = hashlib.sha256()
    with path.open("wb") as file:
        for _ in range(SIZE // (4 * MB)):
            block = os.urandom(MB) * 4
            file.write(block)
            hasher.update(block)
    return path, hasher.hexdigest()


def client(deployment: Deployment) -> httpx.Client:
    endpoint = deployment.plane.endpoint
    headers = {"Authorization": f"Bearer {endpoint.token}"}
    return httpx.Client(base_url=endpoint.url, headers=headers, trust_env=False, timeout=60)


class Memory:
    """The largest growth of processes while a block runs, and how often the control plane answered meanwhile."""

    def __init__(self, deployment: Deployment, *pids: int):
        self._deployment = deployment
        self._processes = {pid: psutil.Process(pid) for pid in pids}
        self._begun = {pid: process.memory_info().rss for pid, process in self._processes.items()}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.grown: dict[int, int] = dict.fromkeys(pids, 0)
        self.answers = 0

    def _look(self) -> None:
        with client(self._deployment) as http:
            while not self._done.wait(0.05):
                for pid, process in self._processes.items():
                    self.grown[pid] = max(self.grown[pid], process.memory_info().rss - self._begun[pid])
                self.answers += http.get("/v1/health").status_code == 200

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._done.set()
        self._thread.join()


def test_a_large_file_passes_through_no_memory_and_others_are_answered_meanwhile(
    deployment: Deployment, large: tuple[Path, str], tmp_path: Path
) -> None:
    path, digest = large
    with client(deployment) as http, Memory(deployment, deployment.plane.pid, os.getpid()) as memory:
        send_blob(http, digest, path, SIZE)
        fetch_blob(http, digest, tmp_path / "back", SIZE)
    assert all(grown < GROWN_AT_MOST for grown in memory.grown.values()), memory.grown
    assert memory.answers > 3
    with (tmp_path / "back").open("rb") as back, path.open("rb") as file:
        while block := file.read(4 * MB):
            assert back.read(4 * MB) == block
        assert back.read(1) == b""


def test_an_upload_goes_on_where_the_control_plane_was_killed(deployment: Deployment, large: tuple[Path, str]) -> None:
    path, digest = large
    sent: list[int] = []
    for kills in range(4):
        reached = threading.Event()
        goal = (kills + 1) * SIZE // 8  # so that much is left when it is killed

        def tell(sent_bytes: int, goal: int = goal, reached: threading.Event = reached) -> None:
            sent.append(sent_bytes)
            if sent_bytes >= goal:
                reached.set()

        stop = threading.Event()
        failures: list[Exception] = []

        def send(stop: threading.Event = stop, failures: list[Exception] = failures) -> None:
            try:
                with client(deployment) as http:
                    send_blob(http, digest, path, SIZE, tell=tell, stop=stop)
            except Exception as error:  # noqa: BLE001 - it was killed
                failures.append(error)

        thread = threading.Thread(target=send)
        thread.start()
        assert reached.wait(60)
        deployment.plane.kill()
        stop.set()
        thread.join()
        assert failures
        deployment.plane.start()
    before = sent[-1]
    sent.clear()
    with client(deployment) as http:
        send_blob(http, digest, path, SIZE, tell=sent.append)
        assert sent[0] >= before  # what the control plane had said that it had, it has
        answer = http.head(f"/v1/blobs/{digest}")
        assert (answer.status_code, answer.headers["Content-Length"]) == (200, str(SIZE))


# ---------------------------------------------------------------- through a worker


def submit(deployment: Deployment, *argv: str, bundle: str = "", **more: Any) -> JobView:
    spec = {"command": {"argv": argv, "bundle": bundle, "output_globs": more.pop("outputs", [])}, **more}
    answer = deployment.request("POST", "/v1/jobs", json={"key": uuid.uuid4().hex, "spec": spec})
    assert answer.status_code == 201, answer.text
    return over(deployment, answer.json()["id"])


def over(deployment: Deployment, name: str) -> JobView:
    def look() -> JobView | None:
        job = deployment.api.job(name)
        return job if job.terminal else None

    return until(look, f"job {name} to be over", 100)


def test_a_large_input_comes_to_a_worker_and_a_large_output_back(
    deployment: Deployment, large: tuple[Path, str], tmp_path: Path
) -> None:
    path, digest = large
    worker = deployment.worker("alpha", warm=0)
    manifest = Manifest(files=[FileEntry(path="data/in.bin", mode=0o644, size=SIZE, sha256=digest)])
    with client(deployment) as http:
        send_blob(http, digest, path, SIZE)
        assert http.post("/v1/bundles", content=manifest.to_bytes()).json()["missing"] == []
        with Memory(deployment, deployment.plane.pid, worker.agent_pid) as memory:
            line = "cp data/in.bin out.bin; printf x >> out.bin; wc -c < out.bin"
            job = submit(deployment, "/bin/sh", "-c", line, bundle=manifest.digest, outputs=["out.bin"])
        assert job.outcome is not None
        assert (job.state.value, job.outcome.exit_code, job.outcome.problem) == ("succeeded", 0, "")
        assert all(grown < GROWN_AT_MOST for grown in memory.grown.values()), memory.grown
        [output] = http.get(f"/v1/jobs/{job.id}/outputs").json()
        assert (output["path"], output["size"]) == ("out.bin", SIZE + 1)
        assert http.get(f"/v1/jobs/{job.id}/logs").text.strip() == str(SIZE + 1)
        fetch_blob(http, output["sha256"], tmp_path / "back", output["size"])
    assert (tmp_path / "back").stat().st_size == SIZE + 1


def test_a_worker_elsewhere_goes_on_fetching_where_the_control_plane_was_killed(
    deployment: Deployment, large: tuple[Path, str], tmp_path: Path
) -> None:
    path, digest = large
    manifest = Manifest(files=[FileEntry(path="in.bin", mode=0o644, size=SIZE, sha256=digest)])
    with client(deployment) as http:
        send_blob(http, digest, path, SIZE)
        http.post("/v1/bundles", content=manifest.to_bytes())
    blobs = Blobs(tmp_path / "blobs")
    workspaces = Workspaces(blobs, lambda: deployment.plane.endpoint)
    part = blobs.folder / "partial" / f"{digest}.{SIZE}"
    failures: list[Exception] = []

    def fetch() -> None:
        try:
            workspaces.fresh(manifest.digest, tmp_path / "w", lambda line: None)
        except FetchError as error:
            failures.append(error)

    thread = threading.Thread(target=fetch)
    thread.start()
    until(lambda: part.exists() and part.stat().st_size > SIZE // 8, "a part of it")
    deployment.plane.kill()
    thread.join()
    assert len(failures) == 1
    came = part.stat().st_size
    deployment.plane.start()
    with Memory(deployment, deployment.plane.pid, os.getpid()) as memory:
        fetch()
    assert len(failures) == 1
    assert came > SIZE // 8
    assert all(grown < GROWN_AT_MOST for grown in memory.grown.values()), memory.grown
    assert hash_of_file(str(tmp_path / "w" / "in.bin")).hexdigest() == digest
