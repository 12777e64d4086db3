"""The kill matrix of joining: who is killed (`kill -9`) at which step, and that one machine has joined in the end."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.join_matrix import MATRIX, STEPS, markdown
from tests.support.deployment import Deployment, Worker
from tests.support.processes import PATIENCE_S, end, until
from tests.support.tree import files_under

DOCS = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"
PAIRS = [(victim, step) for victim, steps in MATRIX.items() for step in steps]


@pytest.fixture(scope="module")
def home() -> Iterator[Deployment]:
    """A control plane that listens for others by TLS."""
    with Deployment(failpoints=True, env={"GPULAYER_EMBEDDED": "0"}) as deployment:
        deployment.plane.start("--listen", "127.0.0.1:0")
        yield deployment


def line(home: Deployment) -> list[str]:
    """The words behind `gpulayer join`."""
    there = home.request("GET", "/v1/listen").json()
    token = home.request("POST", "/v1/tokens", json={"role": "join"}).json()["token"]
    url = f"https://{there['host']}:{there['port']}"
    return [url, "--token", token, "--tls-fingerprint", there["fingerprint"]]


def worker_of(home: Deployment, name: str, words: list[str]) -> Worker:
    data = home.folder / f"w-{name}"
    command = [sys.executable, "-m", "gpulayer_worker", "join", *words, "--data", str(data), "--name", name]
    command += ["--slots", "1", "--warm", "0", "--reserve-bytes", "0"]
    home.workers[name] = Worker(name, data, command, home.env)
    return home.workers[name]


def said(worker: Worker) -> str:
    return (worker.data / "join.log").read_text()


def credentials(home: Deployment, name: str) -> list[dict[str, Any]]:
    listed = home.request("GET", "/v1/tokens").json()
    return [each for each in listed if (each["role"], each["name"], each["state"]) == ("worker", name, "live")]


def where(home: Deployment, secret: str) -> list[str]:
    """The files and processes that hold a secret, but for the failed attempts' own command lines."""
    found: list[str] = []
    for path in files_under(home.folder):
        with contextlib.suppress(OSError):
            if secret.encode() in path.read_bytes():
                found.append(str(path))
    for pid in home.processes():
        for name in ("cmdline", "environ"):
            with contextlib.suppress(OSError):
                if secret.encode() in Path(f"/proc/{pid}/{name}").read_bytes():
                    found.append(f"{name} of {pid}")
    return found


def ended(worker: Worker) -> int:
    """The exit code of the command, once it has ended by itself."""
    assert worker.process is not None
    code = worker.process.wait(PATIENCE_S)
    worker.process = None
    return code


@pytest.mark.parametrize(("victim", "step"), PAIRS, ids=[f"{v.replace(' ', '-')}-{s}" for v, s in PAIRS])
def test_a_kill_while_a_machine_joins(home: Deployment, victim: str, step: int) -> None:
    expect, (_, point, _) = MATRIX[victim][step], STEPS[step]
    words = line(home)
    worker = worker_of(home, f"{victim.split()[0]}-{step}", words)
    with home.failpoint(point) as fp:
        worker.start()
        assert worker.process is not None
        stands = fp.await_hit(PATIENCE_S)
        assert stands == (home.plane.pid if point.startswith("server.") else worker.process.pid)
        assert not [each for each in where(home, words[2]) if "cmdline" in each], "the token is in a command line"
        if victim == "control plane":
            home.plane.kill()
        else:
            end(worker.process.pid, signal.SIGKILL)
    if victim == "joining process":
        assert ended(worker) == -signal.SIGKILL
    elif expect.again:
        assert ended(worker) == 1
        assert expect.said in said(worker)
    if victim == "control plane":
        home.plane.start()
    if expect.again:
        worker.start()
    until(lambda: home.connected(worker.name), lambda: f"it to join:\n{said(worker)}\n{worker.log}")
    check(home, worker, words)


def check(home: Deployment, worker: Worker, words: list[str]) -> None:
    """One worker has joined, by one credential; the token is good for nobody else and lies nowhere."""
    assert [each.name for each in home.api.workers()].count(worker.name) == 1
    assert len(credentials(home, worker.name)) == 1
    kept = json.loads((worker.data / "credential.json").read_bytes())
    assert kept["fingerprint"] == words[4]
    assert where(home, words[2]) == []
    other = home.folder / f"o-{worker.name}"
    command = [sys.executable, "-m", "gpulayer_worker", "join", *words, "--data", str(other)]
    stranger = subprocess.run(command, env=home.env, cwd="/", capture_output=True, text=True, timeout=PATIENCE_S)
    assert stranger.returncode == 1
    assert "was used already" in stranger.stderr
    assert not other.exists()
    job = home.request(
        "POST",
        "/v1/jobs",
        json={
            "key": worker.name,
            "spec": {"command": {"argv": ["true"]}, "requirements": {"worker": worker.name}},
        },
    ).json()["id"]
    shown = home.request("GET", f"/v1/jobs/{job}?wait=60").json()
    assert shown["state"] == "succeeded", shown
    worker.stop()
    del home.workers[worker.name]


def test_the_documented_table_is_this_one() -> None:
    found = re.search(
        r"<!-- kill matrix of joining -->\n(.*?)\n<!-- /kill matrix of joining -->",
        DOCS.read_text(encoding="utf-8"),
        re.DOTALL,
    )
    assert found is not None
    assert found.group(1) == markdown()
