"""A machine joins by a pasted line: real processes, over loopback, by a path of its own and by TLS."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import ssl
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.answering import Answer, answering
from tests.support.deployment import Deployment, Worker
from tests.support.front import Front, certificate
from tests.support.notebook import Notebook
from tests.support.processes import PATIENCE_S, end, until
from tests.support.sitecode import BELIEVES_SOON, at_start
from tests.support.tree import files_under

PREFIX = "/user/x/gpulayer"


@pytest.fixture(scope="module")
def shared() -> Iterator[Deployment]:
    """A control plane, with failpoints."""
    with Deployment(failpoints=True, env={"GPULAYER_EMBEDDED": "0"}) as deployment:
        deployment.plane.start()
        yield deployment


@pytest.fixture
def home(shared: Deployment) -> Iterator[Deployment]:
    """The same; after the test no worker is left."""
    yield shared
    for name in list(shared.workers):
        shared.workers.pop(name).stop()


@pytest.fixture(scope="module")
def notebook(shared: Deployment) -> Notebook:
    """A notebook beside a module."""
    return shared.notebook({"train.py": "LR = 0.1\n", "data.txt": "x" * 100_000})


def new_token(home: Deployment, **more: Any) -> str:
    answer = home.request("POST", "/v1/tokens", json={"role": "join"} | more)
    assert answer.status_code == 201, answer.text
    return answer.json()["token"]


def tokens(home: Deployment) -> list[dict[str, Any]]:
    return home.request("GET", "/v1/tokens").json()


def revoke(home: Deployment, worker: str) -> None:
    """End the credential of a worker."""
    [found] = [each["id"] for each in tokens(home) if (each["name"], each["state"]) == (worker, "live")]
    assert home.request("DELETE", f"/v1/tokens/{found}").status_code == 204


def worker_of(home: Deployment, name: str, *line: str, env: dict[str, str] | None = None) -> Worker:
    """A worker of this deployment that is not started; `line` is what a person pastes."""
    data = home.folder / f"w-{name}"
    command = [sys.executable, "-m", "gpulayer_worker", "join", *line]
    command += ["--data", str(data), "--name", name, "--slots", "2", "--warm", "1", "--reserve-bytes", "0"]
    home.workers[name] = Worker(name, data, command, home.env | (env or {}))
    return home.workers[name]


def joins(home: Deployment, name: str, *line: str, env: dict[str, str] | None = None) -> Worker:
    """The same, started and connected."""
    worker = worker_of(home, name, *line, env=env)
    worker.start()
    until(lambda: home.connected(name), lambda: f"{name} to join:\n{said(worker)}\n{worker.log}")
    return worker


def said(worker: Worker) -> str:
    """What `gpulayer-worker join` wrote to its terminal."""
    return (worker.data / "join.log").read_text()


def ends(worker: Worker) -> int:
    """The exit code of `gpulayer-worker join`, once it ends by itself."""
    assert worker.process is not None
    code = worker.process.wait(PATIENCE_S)
    worker.process = None
    return code


def run(home: Deployment, data: Path, *line: str, env: dict[str, str] | None = None) -> tuple[int, list[str]]:
    """`gpulayer-worker join` where it is to end by itself: its exit code, and its lines."""
    command = [sys.executable, "-m", "gpulayer_worker", "join", *line, "--data", str(data)]
    done = subprocess.run(
        command, env=home.env | (env or {}), cwd="/", capture_output=True, text=True, timeout=3 * PATIENCE_S
    )
    return done.returncode, done.stderr.splitlines()


def works(notebook: Notebook, worker: str) -> None:
    """A cell runs there, with the files beside the notebook."""
    ran = notebook.run(f"%%gpulayer --worker {worker}\nimport train\nprint(train.LR, len(open('data.txt').read()))")
    assert ran.text() == "0.1 100000\n", (ran.text(), ran.traceback)


def where(home: Deployment, secret: str) -> list[str]:
    """The files of the deployment, and of its processes, that hold a secret."""
    needle, found = secret.encode(), []
    for path in files_under(home.folder):
        with contextlib.suppress(OSError):
            if path.is_file() and needle in path.read_bytes():
                found.append(str(path.relative_to(home.folder)))
    for pid in home.processes():
        for name in ("cmdline", "environ"):
            try:
                data = Path(f"/proc/{pid}/{name}").read_bytes()
            except OSError:
                continue  # it has just ended
            if needle in data:
                found.append(f"{name} of {pid}")
    return found


# ---------------------------------------------------------------- a worker's life


def test_a_machine_joins_by_a_line_and_lives_until_it_is_revoked(home: Deployment, notebook: Notebook) -> None:
    token = new_token(home, name="for the lab")
    worker = joins(home, "alpha", home.plane.endpoint.url, "--token", token)
    [shown] = [each for each in tokens(home) if each["name"] == "for the lab"]
    assert (shown["state"], shown["used_by"]) == ("used", "alpha")
    works(notebook, "alpha")
    blobs = [path for path in files_under(worker.data / "blobs") if path.stat().st_size >= 100_000]
    assert blobs, "it read the source beside it, as only a worker of the same machine may"

    kept = worker.data / "credential.json"
    credential = json.loads(kept.read_bytes())["credential"]
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert where(home, token) == []
    assert where(home, credential) == ["w-alpha/credential.json"]

    first = worker.agent_pid
    worker.kill_agent()
    until(lambda: worker.agent_pid != first and home.connected("alpha"), "the next agent")
    works(notebook, "alpha")

    for ending in (home.plane.stop, home.plane.kill):
        ending()
        home.plane.start()
        until(lambda: home.connected("alpha"), lambda: f"alpha to come back:\n{worker.log}")
        works(notebook, "alpha")

    keeper = worker.keeper_pid
    worker.kill_keeper()
    until(lambda: worker.keeper_pid != keeper, "the next keeper, which an agent started")
    assert ends(worker) == -signal.SIGKILL
    works(notebook, "alpha")
    assert where(home, token) == []
    assert where(home, credential) == ["w-alpha/credential.json"]

    revoke(home, "alpha")
    until(lambda: not home.connected("alpha"), "alpha to be cut off")
    until(lambda: not any(str(worker.data) in line for line in home.processes().values()), "its processes to be gone")
    assert worker.log.count("refused by the control plane: the credential of worker alpha was revoked") == 1
    assert where(home, token) == []


def test_a_revoked_worker_says_so_once_and_ends(home: Deployment, notebook: Notebook) -> None:
    url = home.plane.endpoint.url
    worker = joins(home, "beta", url, "--token", new_token(home))
    revoke(home, "beta")
    assert ends(worker) == 1
    [begun, line] = said(worker).splitlines()
    assert "Ctrl-C ends it and what runs here" in begun
    assert line == (
        "gpulayer keeper: the agent gave up: refused by the control plane: "
        "the credential of worker beta was revoked: ask whoever runs the control plane for a new join line, "
        "which `gpulayer token create --role join` makes"
    )
    again = run(home, worker.data)
    assert again == (1, [f"gpulayer-worker: {url} refuses it: the credential of worker beta was revoked: ask whoever "
                         "runs the control plane for a new join line, "
                         "which `gpulayer token create --role join` makes"])  # fmt: skip
    joins(home, "beta", url, "--token", new_token(home))  # with a new line it is the same worker again
    works(notebook, "beta")
    assert [each.name for each in home.api.workers()].count("beta") == 1


def test_a_worker_that_ended_comes_back_without_a_token(home: Deployment, notebook: Notebook) -> None:
    joins(home, "gamma", home.plane.endpoint.url, "--token", new_token(home)).stop()
    until(lambda: not home.connected("gamma"), "gamma to be gone")
    joins(home, "gamma")
    works(notebook, "gamma")


def test_a_copy_of_a_joined_workers_folder(home: Deployment, notebook: Notebook) -> None:
    """Its credential is one worker's own; so is the place of a worker that is connected."""
    url = home.plane.endpoint.url
    origin = joins(home, "delta", url, "--token", new_token(home))
    copy = home.folder / "w-epsilon"
    copy.mkdir(mode=0o700)
    for name in ("worker.json", "credential.json"):
        shutil.copy(origin.data / name, copy)
    code, [line] = run(home, copy, env=at_start(home.folder / "site-soon", BELIEVES_SOON))
    assert code == 1
    assert f"this worker is connected already, from another folder with the id of {copy}/worker.json" in line
    assert "remove that file and join with a new line" in line
    assert home.connected("delta")
    (copy / "worker.json").unlink()
    origin.stop()
    code, lines = run(home, copy, "--name", "epsilon")
    assert code == 1
    assert "the credential of worker delta is not that of epsilon, whose id is another one" in lines[-1]
    joins(home, "epsilon", url, "--token", new_token(home))
    works(notebook, "epsilon")
    origin.start()  # the credential of the one is none of the other's
    until(lambda: home.connected("delta"), lambda: f"delta to come back:\n{said(origin)}\n{origin.log}")


# ---------------------------------------------------------------- an answer that is lost


@pytest.mark.parametrize("point", ["server.exchanged", "join.exchanged", "join.stored"])
def test_a_line_works_again_when_somebody_dies_over_it(home: Deployment, notebook: Notebook, point: str) -> None:
    """The token is used up by then; the same folder gets another credential for it, or has one already."""
    token = new_token(home)
    worker = worker_of(home, f"at-{point.replace('.', '-')}", home.plane.endpoint.url, "--token", token)
    with home.failpoint(point) as fp:
        worker.start()
        stands = fp.await_hit(PATIENCE_S)
        if point.startswith("server"):
            assert stands == home.plane.pid
            home.plane.kill()
        else:
            end(stands, signal.SIGKILL)
    if point.startswith("server"):
        assert ends(worker) == 1
        [line] = said(worker).splitlines()
        assert "broke off before it answered" in line
        assert "try the same line again" in line
        home.plane.start()
    else:
        assert ends(worker) == -signal.SIGKILL
    worker.start()
    until(lambda: home.connected(worker.name), lambda: f"it to join:\n{said(worker)}\n{worker.log}")
    works(notebook, worker.name)
    live = [
        each for each in tokens(home) if (each["role"], each["name"], each["state"]) == ("worker", worker.name, "live")
    ]
    assert len(live) == 1


# ---------------------------------------------------------------- a path of its own, and TLS


@pytest.fixture
def front(home: Deployment) -> Iterator[Callable[..., Front]]:
    """Makes what stands before the control plane."""

    def port() -> int:
        return int(home.plane.endpoint.url.rsplit(":", 1)[1])

    yield lambda tls=None: Front(port, PREFIX, tls)
    for name in list(home.workers):  # before the address is gone that they know
        home.workers.pop(name).stop()


def test_by_a_path_and_tls(home: Deployment, notebook: Notebook, front: Callable[..., Front]) -> None:
    pytest.importorskip("cryptography")
    pem = certificate(home.folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    token = new_token(home)
    with front(context) as proxy:
        code, [line] = run(home, home.folder / "w-trusts-nobody", proxy.url, "--token", token)
        assert code == 1
        assert f"{proxy.url} can't be reached: [SSL: CERTIFICATE_VERIFY_FAILED]" in line
        assert "add the authority of its certificate to those that this system trusts" in line
        assert proxy.asked == []  # no token went there
        trust = {"SSL_CERT_FILE": str(pem)}
        worker = joins(home, "zeta", proxy.url, "--token", token, env=trust)
        works(notebook, "zeta")
        assert {f"{PREFIX}/v1/join", f"{PREFIX}/v1/worker", f"{PREFIX}/v1/blobs/fetch"} <= set(proxy.asked)
        worker.kill_agent()
        until(lambda: proxy.asked.count(f"{PREFIX}/v1/worker") > 1 and home.connected("zeta"), "the next agent")
        works(notebook, "zeta")
        worker.stop()


def test_what_is_revoked_while_it_is_away_ends_when_it_comes_back(
    home: Deployment, notebook: Notebook, front: Callable[..., Front]
) -> None:
    proxy = front()
    with proxy:
        worker = joins(home, "eta", proxy.url, "--token", new_token(home))
        home.plane.stop()
        until(lambda: "out of reach" in worker.log, "eta to notice")
        home.plane.start()
        until(lambda: home.connected("eta"), "eta to come back, from answers of the proxy alone")
        works(notebook, "eta")
    until(lambda: not home.connected("eta"), "the connection to be gone")
    revoke(home, "eta")
    with proxy:
        assert ends(worker) == 1
    begun, *away, line = said(worker).splitlines()
    assert "Ctrl-C ends it and what runs here" in begun
    assert all(re.match("gpulayer: control plane .* (out of reach for|back after)", each) for each in away), away
    assert "refused by the control plane: the credential of worker eta was revoked" in line


# ---------------------------------------------------------------- bad input


def refused(home: Deployment, *line: str) -> str:
    """The one line of a join that ends with 1 and leaves nothing."""
    data = home.folder / "w-refused"
    code, lines = run(home, data, *line)
    assert (code, len(lines)) == (1, 1), lines
    assert not data.exists()
    for word in line[2::2]:
        assert word not in lines[0], "a token was printed"
    return lines[0]


def test_tokens_that_let_nobody_in(home: Deployment) -> None:
    url = home.plane.endpoint.url
    assert "does not know this token" in refused(home, url, "--token", "gl-join-made-up")
    expired = new_token(home, name="short", expires_s=0.001)
    assert "refuses it: the token short has expired: ask" in refused(home, url, "--token", expired)
    gone = new_token(home, name="gone")
    [id] = [each["id"] for each in tokens(home) if each["name"] == "gone"]
    home.request("DELETE", f"/v1/tokens/{id}")
    assert "refuses it: the token gone was revoked: ask" in refused(home, url, "--token", gone)
    used = new_token(home, name="spent")
    body = {"worker_id": "somebody", "name": "theta"}
    assert home.request("POST", "/v1/join", token=used, json=body).status_code == 201
    assert "refuses it: the token spent was used already, by theta: ask" in refused(home, url, "--token", used)
    wrong = refused(home, url, "--token", home.plane.endpoint.token)
    assert wrong.endswith(
        "a token of the role admin may not do this: joining with a machine needs a token of the role join, which "
        "`gpulayer token create --role join` makes on the control plane's machine"
    )


def test_addresses_that_are_none(home: Deployment) -> None:
    token = new_token(home)
    assert "http://127.0.0.1:1 can't be reached: " in refused(home, "http://127.0.0.1:1", "--token", token)
    with answering(lambda _: Answer(headers={"Content-Type": "text/html"}, body=b"<html>")) as other:
        line = refused(home, f"{other.url}/lab", "--token", token)
    assert f"{other.url}/lab is not a GPUlayer address: it answered 200 with text/html" in line
    code, [line] = run(home, home.folder / "w-refused", "192.168.1.50:8888", "--token", token)
    assert code == 2
    assert "is not an address such as https://HOST:PORT" in line


def test_a_folder_that_can_not_be_written(home: Deployment) -> None:
    if os.geteuid() == 0:
        blocked = home.folder / "a-file"
        blocked.touch()
    else:
        blocked = Path("/")
    token = new_token(home)
    code, [line] = run(home, blocked / "w", home.plane.endpoint.url, "--token", token)
    assert code == 1
    assert f"{blocked / 'w'} can't be this worker's folder" in line
    [state] = [each["state"] for each in tokens(home) if each["used_by"] is None and each["state"] == "live"][-1:]
    assert state == "live"
