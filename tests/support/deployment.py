"""A control plane and workers as real processes, in a folder of their own, with nothing left of them at the end."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from gpulayer.client.api import Api
from gpulayer.protocol.endpoint import Endpoint, read_endpoint
from gpulayer.protocol.failpoints import Failpoint
from gpulayer_worker.keeper.identity import alive
from gpulayer_worker.keeper.procs import process_table
from gpulayer_worker.keeper.records import Folder
from gpulayer_worker.keeper.spawning import KEEPER_VARIABLE
from tests.support.notebook import Notebook
from tests.support.processes import MARKER, PATIENCE_S, end, marked, until, wait_for_end

_OF_OTHERS = ("PYTEST", "GPULAYER", "JPY", "JUPYTER", "IPYTHON", "XDG_")


class ControlPlane:
    """The control plane's process in the deployment's data folder; it may be ended and started any number of times."""

    def __init__(self, data: Path, env: dict[str, str]):
        self.data = data
        self._env = env
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> Endpoint:
        """Where it listens, as its data folder says."""
        found = read_endpoint(self.data)
        if found is None:
            raise LookupError(f"{self.data} names no control plane")
        return found

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.endpoint.pid

    @property
    def log(self) -> str:
        """What it wrote to its standard error, over all of its lives."""
        path = self.data / "logs" / "server.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self, *arguments: str) -> None:
        """Start it, and return once it listens."""
        logs = self.data / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "gpulayer_server", "--data", str(self.data), "--announce", *arguments]
        with (logs / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, env=self._env, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log
            )
        stdout = self.process.stdout
        assert stdout is not None
        with stdout:
            assert select.select([stdout], [], [], PATIENCE_S)[0], f"the control plane says nothing:\n{self.log}"
            assert stdout.readline(), f"the control plane did not start:\n{self.log}"

    def stop(self) -> int:
        """Ask it to end; its exit code."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        """End it at once, as a crash does."""
        return self._end(signal.SIGKILL)

    def _end(self, number: int) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE_S)
        self.process = None
        return code


class Worker:
    """A worker's processes: the keeper, which we start, its agent, and what they run."""

    def __init__(self, name: str, data: Path, command: list[str], env: dict[str, str]):
        self.name = name
        self.data = data
        self.command = command
        self._env = env
        self.process: subprocess.Popen[bytes] | None = None
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.key = Folder(str(data)).key  # what its keepers mark all that they start with

    def start(self) -> None:
        """Start the keeper, which starts the agent; returns at once."""
        with (self.data / "join.log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command, env=self._env, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    @property
    def keeper_pid(self) -> int:
        """The keeper's process id, whoever started that keeper."""
        return self._record("keeper")["pid"]

    @property
    def agent_pid(self) -> int:
        """The agent's process id; waits for one, where the keeper is about to start the next."""
        return until(lambda: self._record("agent"), f"an agent of {self.name}")["pid"]

    @property
    def log(self) -> str:
        """What the agents wrote."""
        path = self.data / "logs" / "agent.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def kill_agent(self) -> None:
        """End the agent at once, as a crash does; the keeper starts another one."""
        end(self.agent_pid, signal.SIGKILL)

    def kill_keeper(self) -> None:
        """End the keeper at once; the agent starts another one."""
        end(self.keeper_pid, signal.SIGKILL)

    def stop(self) -> None:
        """Ask the keeper to end, with everything that it has; an agent that just lost its keeper starts one first."""
        pid = until(self._living_keeper, f"a keeper of {self.name}")
        if pid > 0:
            end(pid)
        if self.process is not None:
            self.process.wait(PATIENCE_S)
            self.process = None

    def _living_keeper(self) -> int:
        """The pid of the keeper; -1 where neither it nor an agent that would start one lives, 0 in between."""
        if self._lives("keeper"):
            return self.keeper_pid
        return 0 if self._lives("agent") else -1

    def _lives(self, name: str) -> bool:
        record = self._record(name)
        return bool(record) and alive(process_table(), record["pid"], record["start_time"])

    def _record(self, name: str) -> dict[str, Any]:
        """What the keeper noted, {} where nothing is."""
        try:
            return json.loads((self.data / f"{name}.json").read_bytes())
        except FileNotFoundError:
            return {}


class Deployment:
    """One control plane, its workers and notebooks. As a context manager it leaves no process and no folder behind.

        with Deployment() as deployment:
            deployment.plane.start()
            worker = deployment.worker("alpha", slots=2)
            notebook = deployment.notebook()
            assert notebook.run("%%gpulayer\\nprint(1)").text() == "1\\n"

    With `failpoints`, every process takes part in them: see `failpoint`. `env` is added to all environments.
    """

    def __init__(self, *, failpoints: bool = False, env: dict[str, str] | None = None):
        self.folder = Path(tempfile.mkdtemp(prefix="gd", dir="/tmp"))  # short: paths of sockets are limited
        self.data = self.folder / "data"
        self.run = uuid.uuid4().hex
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_OF_OTHERS)}
        (self.folder / "home").mkdir()
        self.env = kept | {"GPULAYER_DATA": str(self.data), MARKER: self.run, "HOME": str(self.folder / "home")}
        if failpoints:
            (self.folder / "fp").mkdir()
            self.env["GPULAYER_FAILPOINTS"] = str(self.folder / "fp")
        self.env |= env or {}
        self.plane = ControlPlane(self.data, self.env)
        self.workers: dict[str, Worker] = {}
        self.notebooks: list[Notebook] = []

    # ---------------------------------------------------------------- what runs

    def worker(
        self,
        name: str = "alpha",
        *arguments: str,
        slots: int = 4,
        warm: int = 1,
        python: str = sys.executable,
        env: dict[str, str] | None = None,
    ) -> Worker:
        """A worker that has joined: waits until the control plane knows it."""
        data = self.folder / f"w-{name}"
        command = [sys.executable, "-m", "gpulayer_worker", "join", "--control-plane", str(self.data)]
        command += ["--data", str(data), "--name", name, "--slots", str(slots), "--warm", str(warm)]
        command += ["--python", python, "--reserve-bytes", "0", *arguments]
        worker = self.workers[name] = Worker(name, data, command, self.env | (env or {}))
        worker.start()
        until(lambda: self.connected(name), lambda: f"{name} to join:\n{worker.log}")
        return worker

    def local_worker(self) -> Worker:
        """The worker that an embedded control plane started, so that it ends with this deployment."""
        until((self.data / "worker" / "keeper.json").exists, "the local worker's keeper")
        worker = self.workers["local"] = Worker("local", self.data / "worker", [], self.env)
        return worker

    def connected(self, name: str) -> bool:
        """Whether the control plane has a connection to this worker."""
        return any(worker.name == name and worker.connected for worker in self.api.workers())

    def notebook(
        self,
        files: Mapping[str, str | bytes] | None = None,
        *,
        extension: bool = True,
        env: dict[str, str] | None = None,
    ) -> Notebook:
        """A kernel as a notebook has one, in a folder with these files; `extension` loads gpulayer into it."""
        folder = self.folder / f"n{len(self.notebooks)}"
        folder.mkdir()
        for name, content in (files or {}).items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        notebook = Notebook(folder, self.env | (env or {}), runtime=self.folder / f"k{len(self.notebooks)}")
        self.notebooks.append(notebook)
        notebook.start_kernel()
        if extension:
            loaded = notebook.run("%load_ext gpulayer")
            assert not loaded.outputs, loaded.outputs
        return notebook

    def failpoint(self, name: str) -> Failpoint:
        """A failpoint of any of the processes, to be armed: `with deployment.failpoint('server.committed') as fp:`."""
        return Failpoint(self.env["GPULAYER_FAILPOINTS"], name)

    # ---------------------------------------------------------------- looking

    @property
    def api(self) -> Api:
        """The client's API, at whatever control plane answers now."""
        return Api(self.plane.endpoint)

    def request(self, method: str, path: str, *, token: str | None = None, **more: Any) -> httpx.Response:
        """A plain request; `token` None takes the right one, '' sends none."""
        endpoint = self.plane.endpoint
        token = endpoint.token if token is None else token
        headers = [(b"Authorization", f"Bearer {token}".encode())] if token else []
        url = endpoint.url + path
        return httpx.request(method, url, headers=headers, trust_env=False, verify=False, timeout=30, **more)

    def slots_free(self, name: str) -> int:
        """The free slots of a worker."""
        return next(worker.slots_free for worker in self.api.workers() if worker.name == name)

    def processes(self) -> dict[int, str]:
        """Every living process of this deployment: pid and command line."""
        keys = {worker.key for worker in self.workers.values()}
        return marked({MARKER: {self.run}, KEEPER_VARIABLE: keys}, self.folder)

    # ---------------------------------------------------------------- the end

    def close(self) -> None:
        """End everything, by pid, and fail where a process is left (it is killed then)."""
        try:
            for notebook in self.notebooks:
                notebook.close()
            for worker in self.workers.values():
                worker.stop()
            self._stop_plane()
            left = self._left()
            assert not left, f"processes were left: {left}\n{self.plane.log}"
        finally:
            for pid in self.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                wait_for_end(pid)
            shutil.rmtree(self.folder, ignore_errors=True)

    def _stop_plane(self) -> None:
        if self.plane.process is not None:
            self.plane.stop()
        endpoint = read_endpoint(self.data)
        if endpoint is not None and endpoint.pid in self.processes():  # an embedded one
            end(endpoint.pid)

    def _left(self) -> dict[int, str]:
        """What still lives; a process that is just ending has a moment for it."""
        deadline = time.monotonic() + 5.0
        for pid in self.processes():
            with contextlib.suppress(TimeoutError):
                wait_for_end(pid, max(0.0, deadline - time.monotonic()))
        return self.processes()

    def __enter__(self) -> Deployment:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
