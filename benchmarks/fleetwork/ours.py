"""Ours: a control plane and agents as processes of their own, driven through the public API."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

import gpulayer as gl
from gpulayer.protocol.endpoint import Endpoint, read_endpoint

_READY_S = 120.0
_DONE_S = 600.0
_LOOK_S = 0.05
_OVER = frozenset({"succeeded", "failed", "cancelled", "rejected"})


class FleetFailed(RuntimeError):
    """Something did not go as every run must: the figures would mean nothing."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One batch, from the call that submits it to the last one's end."""

    jobs: int
    ingest_s: float
    seconds: float
    cpu_ms_per_job: float  # of the control plane
    lag_p99_ms: float
    lag_max_ms: float


class Fleet:
    """A control plane with agents on this machine."""

    def __init__(self, folder: Path, *, agents: int, slots: int):
        self._folder = folder
        folder.mkdir()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._data = folder / "cp"
        self._start("-m", "gpulayer_server", "--data", str(self._data))
        self.endpoint = self._listening()
        for n in range(agents):
            options = ("--control-plane", str(self._data), "--data", str(folder / f"a{n}"), "--name", f"agent-{n}")
            self._start("-m", "gpulayer_worker", "join", *options, "--slots", str(slots), "--warm", "0")
        self.client = gl.Client(data=self._data)
        headers = {"Authorization": f"Bearer {self.endpoint.token}"}
        self._http = httpx.Client(base_url=self.endpoint.url, headers=headers, timeout=60.0, trust_env=False)
        self._until(lambda: sum(w.connected for w in self.client.workers()) == agents, "all agents to join")

    def _start(self, *arguments: str) -> None:
        with (self._folder / "log").open("ab") as log:
            command = [sys.executable, *arguments]
            self._processes.append(
                subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
            )

    def _listening(self) -> Endpoint:
        self._until(lambda: read_endpoint(self._data) is not None, "the control plane to listen")
        endpoint = read_endpoint(self._data)
        if endpoint is None:
            raise FleetFailed("the control plane's endpoint.json went away")
        return endpoint

    def _until(self, done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _READY_S
        while not done():
            if time.monotonic() > deadline:
                raise FleetFailed(f"waited {_READY_S:.0f} s for {what}: see {self._folder}/log")
            time.sleep(0.05)

    def run(self, commands: Sequence[gl.Command]) -> Run:
        """Submit a batch, wait for its end, then read every record again and check it."""
        control_plane = psutil.Process(self.endpoint.pid)
        self._ask("POST", "/v1/loop")
        cpu_s = _cpu_s(control_plane)
        began = time.perf_counter()
        jobs = self.client.submit_batch(commands)
        ingest_s = time.perf_counter() - began
        self._wait([job.id for job in jobs])
        seconds = time.perf_counter() - began
        cpu_s = _cpu_s(control_plane) - cpu_s
        lag = self._ask("DELETE", "/v1/loop").json()
        self._check([job.id for job in jobs])
        return Run(
            jobs=len(jobs),
            ingest_s=ingest_s,
            seconds=seconds,
            cpu_ms_per_job=1000 * cpu_s / len(jobs),
            lag_p99_ms=lag["p99_ms"],
            lag_max_ms=lag["max_ms"],
        )

    def _wait(self, names: list[str]) -> None:
        """Ask for the last one first: of a batch in order only the end needs to be looked at often."""
        open_names = list(names)
        deadline = time.monotonic() + _DONE_S
        while open_names:
            tail = self._ask("POST", "/v1/jobs/states", json={"jobs": open_names[-16:]}).json()
            if all(state in _OVER for state in tail.values()):
                states = self._ask("POST", "/v1/jobs/states", json={"jobs": open_names}).json()
                open_names = [name for name in open_names if states[name] not in _OVER]
                continue
            if time.monotonic() > deadline:
                raise FleetFailed(f"{len(open_names)} of {len(names)} jobs had not ended after {_DONE_S:.0f} s")
            time.sleep(_LOOK_S)

    def _check(self, names: list[str]) -> None:
        """Every job's record: it ran once, ended with 0, and its attempt says when, where and at what cost.

        An attempt that was given back before it started is no run.
        """
        for name in names:
            attempts = self._ask("GET", f"/v1/jobs/{name}/attempts").json()
            [attempt] = [each for each in attempts if each.get("started_at") is not None]
            outcome = attempt["outcome"]
            whole = outcome["exit_code"] == 0 and outcome["wall_s"] is not None and outcome["cpu_s"] is not None
            if outcome["state"] != "succeeded" or not whole or not attempt["started_at"] <= attempt["ended_at"]:
                raise FleetFailed(f"job {name} did not end as it must: {attempt}")

    def _ask(self, method: str, path: str, **more: object) -> httpx.Response:
        answer = self._http.request(method, path, **more)  # type: ignore[arg-type]
        if answer.status_code >= 400:
            raise FleetFailed(f"{method} {path}: {answer.status_code} {answer.text[:300]}")
        return answer

    def close(self) -> None:
        """End every process that was started here, agents first."""
        self._http.close()
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


@contextmanager
def fleet(folder: Path, *, agents: int, slots: int) -> Iterator[Fleet]:
    """A fleet that ends with the block."""
    made = Fleet(folder, agents=agents, slots=slots)
    try:
        yield made
    finally:
        made.close()
