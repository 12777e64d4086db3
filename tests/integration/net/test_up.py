"""`gpulayer up` and `gpulayer join` over loopback: the line, who comes and goes, the end, and who takes over."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpulayer.client.connection import Connection, Subscription
from gpulayer.client.errors import ControlPlaneError, RequestRefused
from gpulayer.client.remote import endpoint_of, reached
from gpulayer.protocol.endpoint import read_endpoint
from gpulayer.protocol.messages import Chunk, Update
from gpulayer.protocol.records import Kind, Splitter
from gpulayer.protocol.types import CommandSpec, JobSpec, State
from tests.support.deployment import Deployment, Worker
from tests.support.processes import PATIENCE_S, until

_UP = "import sys; from gpulayer_server.commands.up import main; sys.exit(main(sys.argv[1:]))"
_LINE = re.compile(r"^gpulayer join (.*)$", re.MULTILINE)


class Up:
    """`gpulayer up` on this machine."""

    def __init__(self, home: Deployment, *words: str, env: dict[str, str] | None = None):
        self._path = home.folder / "up.log"
        self._path.unlink(missing_ok=True)
        command = [sys.executable, "-c", _UP, "--host", "127.0.0.1", "--port", "0", *words]
        with self._path.open("ab") as log:
            self.process = subprocess.Popen(
                command, env=home.env | (env or {}), cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    @property
    def said(self) -> str:
        """What a person sees."""
        return self._path.read_text()

    def line(self, number: int = 0) -> list[str]:
        """The words behind `gpulayer join` of the line of this number."""
        lines = until(lambda: _LINE.findall(self.said)[number:], lambda: f"line {number}:\n{self.said}")
        return shlex.split(lines[0])

    def until_said(self, text: str) -> None:
        until(lambda: text in self.said, lambda: f"{text!r}:\n{self.said}")

    def interrupt(self) -> int:
        """Ctrl-C, once."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        return self.process.wait(PATIENCE_S)


@pytest.fixture
def home() -> Iterator[Deployment]:
    with Deployment(env={"GPULAYER_LOCAL_WORKER": "--warm 0 --reserve-bytes 0", "GPULAYER_EMBEDDED": "0"}) as home:
        yield home


@pytest.fixture
def ups(home: Deployment) -> Iterator[list[Up]]:
    """Those that were started; they end before the deployment does."""
    started: list[Up] = []
    yield started
    for name in list(home.workers):
        home.workers.pop(name).stop()
    for up in started:
        up.interrupt()


def joins(home: Deployment, name: str, words: list[str]) -> Worker:
    data = home.folder / f"w-{name}"
    command = [sys.executable, "-m", "gpulayer_worker", "join", *words, "--data", str(data), "--name", name]
    command += ["--slots", "1", "--warm", "0", "--reserve-bytes", "0"]
    worker = home.workers[name] = Worker(name, data, command, home.env)
    worker.start()
    until(lambda: connected(home, name), lambda: f"{name}: {(data / 'join.log').read_text()}\n{worker.log}")
    return worker


def connected(home: Deployment, name: str) -> bool:
    try:
        return home.connected(name)
    except (ControlPlaneError, RequestRefused):
        return False  # it is just changing hands: the next one has another token


def logged(home: Deployment) -> str:
    """What `gpulayer up` logged."""
    return (home.data / "logs" / "control-plane.log").read_text()


def holds(secret: str, pids: dict[int, str]) -> list[int]:
    """The processes in whose command line or environment a secret is."""
    found: list[int] = []
    for pid in pids:
        for name in ("cmdline", "environ"):
            with contextlib.suppress(OSError):
                if secret.encode() in Path(f"/proc/{pid}/{name}").read_bytes():
                    found.append(pid)
    return found


def test_its_line_lets_one_machine_in_and_another_one_follows(home: Deployment, ups: list[Up]) -> None:
    secret = {"GPULAYER_TOKEN": "a-clients-secret"}
    ups.append(up := Up(home, "--name", "here", "--slots", "1", env=secret))
    url, _, token, _, text = up.line()
    assert url.startswith("https://127.0.0.1:")
    up.until_said("● here is there · 1 slot · 1 machine")
    home.local_worker()
    # of what it starts, the first moment is its own
    until(lambda: holds("a-clients-secret", home.processes()) == [up.process.pid], "its secret to be its own")
    joins(home, "one", up.line())
    up.until_said("● one joined · 1 slot · 2 machines")
    second = up.line(1)
    assert (second[0], second[4]) == (url, text)
    assert second[2] != token
    two = joins(home, "two", second)
    up.until_said("● two joined · 1 slot · 3 machines")
    two.stop()
    up.until_said("○ two is out of reach; what runs there goes on · 2 machines")
    assert holds(token, home.processes()) == []
    assert f"its data lies in            {home.data}" in up.said
    assert text in up.said.partition("its certificate is")[2].splitlines()[0]


def test_one_ctrl_c_ends_it_and_the_next_one_is_found_at_the_same_address(home: Deployment, ups: list[Up]) -> None:
    ups.append(up := Up(home, "--name", "here", "--slots", "1"))
    up.until_said("● here is there")
    joins(home, "one", up.line())
    assert up.interrupt() == 0
    assert "joined machines come back by themselves" in up.said
    until(lambda: not [line for line in home.processes().values() if "--local" in line], "the local worker to end")
    words = [sys.executable, "-c", _UP, "--data", str(home.data), "--no-worker"]  # the address is remembered
    with (home.folder / "again.log").open("wb") as log:
        again = subprocess.Popen(words, env=home.env, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        until(lambda: connected(home, "one"), lambda: (home.folder / "again.log").read_text())
        assert up.line()[0] in (home.folder / "again.log").read_text()
        home.workers.pop("one").stop()
    finally:
        again.send_signal(signal.SIGTERM)
        assert again.wait(PATIENCE_S) == 0


def test_jobs_stay_where_they_are_when_it_ends(home: Deployment, ups: list[Up]) -> None:
    ups.append(up := Up(home, "--name", "here", "--slots", "1"))
    up.until_said("● here is there")
    home.local_worker()
    go = home.folder / "go"
    script = f"until test -e {go}; do sleep 0.05; done; echo went on"
    spec = {"command": {"argv": ["bash", "-c", script]}}
    job = home.request("POST", "/v1/jobs", json={"key": "k", "spec": spec}).json()["id"]
    until(lambda: home.request("GET", f"/v1/jobs/{job}").json()["state"] == "running", "it to run")
    assert up.interrupt() == 0
    assert "ended; 1 job goes on, on this machine too: `gpulayer up` again is back with them" in up.said
    go.touch()
    ups.append(Up(home, "--name", "here", "--slots", "1"))
    until(lambda: read_endpoint(home.data) and succeeded(home, job), "it to be told")
    assert home.request("GET", f"/v1/jobs/{job}/logs").text == "went on\n"


def succeeded(home: Deployment, job: str) -> bool:
    with contextlib.suppress(OSError, ValueError, Exception):
        return home.request("GET", f"/v1/jobs/{job}").json()["state"] == "succeeded"
    return False


def test_where_another_process_holds_it_that_one_listens_and_its_place_is_taken(
    home: Deployment, ups: list[Up]
) -> None:
    home.plane.start()
    first = home.plane.pid
    ups.append(up := Up(home, "--no-worker"))
    up.until_said(f"the control plane runs in   process {first}; this one stands by")
    joins(home, "one", up.line())
    up.until_said("● one joined")
    home.plane.kill()
    until(lambda: (found := read_endpoint(home.data)) is not None and found.pid == up.process.pid, "it to take over")
    until(lambda: connected(home, "one"), lambda: f"one to come back:\n{up.said}\n{logged(home)}")
    joins(home, "two", up.line(1))
    up.until_said("● two joined · 1 slot · 2 machines")
    for name in ("one", "two"):
        home.workers.pop(name).stop()


def test_what_is_in_its_way_is_one_line(home: Deployment) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = [sys.executable, "-c", _UP, "--host", "127.0.0.1", "--port", str(port), "--no-worker"]
        done = subprocess.run(words, env=home.env, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"gpulayer: port {port} of 127.0.0.1 is taken by another program; choose another port\n"
    words = [sys.executable, "-c", _UP, "--host", "203.0.113.9"]
    done = subprocess.run(words, env=home.env, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stderr) == (
        1, "gpulayer: 203.0.113.9 is not an address of this machine; choose one of its own\n",
    )  # fmt: skip
    assert not (home.data / "endpoint.json").exists()
    assert home.processes() == {}


# ---------------------------------------------------------------- clients of other machines


def made(home: Deployment, **body: Any) -> str:
    answer = home.request("POST", "/v1/tokens", json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()["token"]


def ended(subscription: Subscription) -> str:
    """Why a subscription is over for good; '' while it is not."""
    try:
        subscription.get(1.0)
    except ControlPlaneError as error:
        return str(error)
    return ""


def test_a_remote_client_submits_and_follows_and_is_cut_when_revoked(home: Deployment, ups: list[Up]) -> None:
    ups.append(up := Up(home, "--name", "here", "--slots", "2"))
    up.until_said("● here is there")
    home.local_worker()
    url, _, _, _, text = up.line()
    endpoint = endpoint_of(url, made(home, role="submitter", name="alice"), text)
    connection = Connection(lambda: reached(endpoint))
    try:
        script = "for n in 1 2 3; do head -c 300000 /dev/zero | tr '\\0' x; done; env"
        spec = JobSpec(command=CommandSpec(argv=("bash", "-c", script)))
        subscription = connection.submit(spec, "k1")
        out, view = b"", None
        splitter = Splitter()
        while view is None or not view.terminal:
            message = subscription.get(PATIENCE_S)
            if isinstance(message, Chunk):
                out += b"".join(bytes(body) for _, kind, body in splitter.feed(message.data) if kind == Kind.STDOUT)
            elif isinstance(message, Update):
                view = message.job
        assert view.state is State.SUCCEEDED, view
        assert view.owner == "alice"
        assert out.count(b"x") >= 900_000
        assert b"GPULAYER_TOKEN" not in out
        assert b"GPULAYER_URL" not in out
        waiting = connection.submit(JobSpec(command=CommandSpec(argv=("sleep", "600"))), "k2")
        until(lambda: getattr(waiting.get(1.0), "job", None) is not None, "it to be taken")
        assert home.request("DELETE", "/v1/tokens/alice").status_code == 204
        assert "the token alice was revoked" in until(lambda: ended(waiting), "it to be cut off")
    finally:
        connection.close()
    for job in home.api.jobs():
        if not job.terminal:
            home.api.cancel(job.id)
    until(lambda: all(job.terminal for job in home.api.jobs()), "all to end")


def test_a_readers_token_submits_nothing_and_a_submitter_cancels_its_own(home: Deployment, ups: list[Up]) -> None:
    ups.append(up := Up(home, "--name", "here", "--slots", "1"))
    up.until_said("● here is there")
    home.local_worker()
    url, _, _, _, text = up.line()
    reader = reached(endpoint_of(url, made(home, role="reader", name="rita"), text))
    connection = Connection(lambda: reader)
    try:
        subscription = connection.submit(JobSpec(command=CommandSpec(argv=("true",))), "k")
        with pytest.raises(ControlPlaneError, match="needs a token of the role submitter or admin, which `gpulayer to"):
            subscription.get(PATIENCE_S)
    finally:
        connection.close()
    alice, bob = (made(home, role="submitter", name=name) for name in ("alice", "bob"))
    spec = {"command": {"argv": ["sleep", "600"]}}
    job = home.request("POST", "/v1/jobs", token=alice, json={"key": "k", "spec": spec}).json()
    assert job["owner"] == "alice"
    refused = home.request("POST", f"/v1/jobs/{job['id']}/cancel", token=bob)
    assert (refused.status_code, "alice" in refused.text) == (403, True)
    assert home.request("POST", f"/v1/jobs/{job['id']}/cancel", token=alice).status_code == 200
    until(lambda: all(job.terminal for job in home.api.jobs()), "it to end")


def test_the_pin_is_looked_at_before_the_token_leaves(home: Deployment, ups: list[Up]) -> None:
    """Situation 18, with the machine's own command; nothing of the attempt is left."""
    ups.append(up := Up(home, "--no-worker"))
    url, _, token, _, text = up.line()
    wrong = f"SHA256:{'0' * 64}"
    words = [sys.executable, "-m", "gpulayer_worker", "join", url, "--token", token, "--tls-fingerprint", wrong]
    data = home.folder / "w-refused"
    done = subprocess.run(
        [*words, "--data", str(data)], env=home.env, cwd="/", capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert f"presents the fingerprint {text}, expected was {wrong}" in line
    assert "nothing was sent to it" in line
    assert "at the line that `gpulayer up` shows now" in line
    assert token not in line
    assert not data.exists()
    [state] = [each["state"] for each in home.request("GET", "/v1/tokens").json()]
    assert state == "live"
    joins(home, "one", up.line())
    kept = json.loads((home.folder / "w-one" / "credential.json").read_bytes())
    assert kept["fingerprint"] == text
    assert os.stat(home.folder / "w-one" / "credential.json").st_mode & 0o777 == 0o600
    home.workers.pop("one").stop()
