"""Situations 18 to 20: machines that do not come in, or whose control plane is away."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulayer.protocol.types import State
from tests.support.deployment import Deployment, Worker
from tests.support.processes import PATIENCE_S, until
from tests.support.terminal import Cli

JOIN = "`gpulayer token create --role join`"


@pytest.fixture(scope="module")
def home() -> Iterator[Deployment]:
    """A control plane that other machines can join, by TLS too."""
    with Deployment(env={"GPULAYER_EMBEDDED": "0"}) as deployment:
        deployment.plane.start("--listen", "127.0.0.1:0")
        yield deployment


def joining(home: Deployment, *line: str) -> str:
    """The one line of a `gpulayer join` that is refused, and leaves nothing."""
    data = home.folder / "w-refused"
    command = [sys.executable, "-m", "gpulayer_worker", "join", *line, "--data", str(data)]
    done = subprocess.run(command, env=home.env, cwd="/", capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 1, done.stderr
    [text] = done.stderr.splitlines()
    assert not data.exists()
    return text


def made(home: Deployment, role: str, name: str, expires_s: float | None = None) -> str:
    """A token."""
    body = {"role": role, "name": name, "expires_s": expires_s}
    answer = home.request("POST", "/v1/tokens", json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()["token"]


def test_18_a_wrong_fingerprint(home: Deployment) -> None:
    where = home.request("GET", "/v1/listen").json()
    url, presented = f"https://127.0.0.1:{where['port']}", where["fingerprint"]
    expected = "SHA256:" + "0" * 64
    token = made(home, "join", "for 18")
    line = joining(home, url, "--token", token, "--tls-fingerprint", expected)
    assert line == (
        f"gpulayer-worker: {url} presents the fingerprint {presented}, expected was {expected}: another machine "
        "answers there, or its certificate was made anew; nothing was sent to it; look on that machine, not by the "
        "network, at the line that `gpulayer up` shows now, and paste that"
    )
    [shown] = [each for each in home.request("GET", "/v1/tokens").json() if each["name"] == "for 18"]
    assert shown["state"] == "live"  # nothing was sent


def test_19_an_expired_token_and_a_submitters(home: Deployment) -> None:
    url = home.plane.endpoint.url
    expired = joining(home, url, "--token", made(home, "join", "for the lab", expires_s=0.001))
    assert expired == (
        f"gpulayer-worker: {url} refuses it: the token for the lab has expired: ask whoever runs the control plane for "
        f"a new join line, which {JOIN} makes"
    )
    both = joining(home, url, "--token", made(home, "submitter", "bob", expires_s=0.001))
    assert both == (
        f"gpulayer-worker: {url} refuses it: the token bob has expired, and it was none to join with; ask for a join "
        f"line, which {JOIN} makes on the control plane's machine"
    )
    wrong = joining(home, url, "--token", made(home, "submitter", "ana"))
    assert wrong == (
        f"gpulayer-worker: {url}: a token of the role submitter may not do this: joining with a machine needs a token "
        f"of the role join, which {JOIN} makes on the control plane's machine"
    )


def test_20_the_control_plane_is_out_of_reach(home: Deployment, tmp_path: Path) -> None:
    worker = home.worker("alpha", warm=0)
    cli, go = Cli(tmp_path, home.env), tmp_path / "go"
    line = f"until [ -e '{go}' ]; do sleep 0.02; done; echo went on"
    job = cli.run("submit", "--detach", "--shell", line).stdout.strip()
    until(lambda: home.api.job(job).state is State.RUNNING, "the job to run")
    url = home.plane.endpoint.url
    home.plane.kill()
    away = until(lambda: terminal(worker, "out of reach"), lambda: f"a line on the terminal:\n{worker.log}")
    form = r"gpulayer: control plane (\S+) out of reach for \d+ s: Connection refused; next try in \d\.\d s; jobs go on"
    found = re.fullmatch(form, away)
    assert found is not None, away
    assert found[1] == url
    go.touch()
    home.plane.start()
    back = until(lambda: terminal(worker, "back after"), lambda: f"a line on the terminal:\n{worker.log}")
    assert re.fullmatch(r"gpulayer: control plane \S+ back after \d+ s", back), back
    until(lambda: home.api.job(job).terminal, "the job to end")
    assert cli.run("job", "logs", job).stdout == "went on\n"  # jobs went on
    assert len(terminals(worker)) == 2  # what changed, and nothing else


def terminals(worker: Worker) -> list[str]:
    """What a person sees in the terminal of `gpulayer join` while it works."""
    return [line for line in (worker.data / "join.log").read_text().splitlines() if "control plane" in line]


def terminal(worker: Worker, text: str) -> str:
    """The line with this text, '' where there is none yet."""
    return next((line for line in terminals(worker) if text in line), "")
