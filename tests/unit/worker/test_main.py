"""`gpulayer-worker join`: what is looked at before anything is made."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import msgspec
import pytest

from gpulayer.protocol.endpoint import REMOTE, Endpoint
from gpulayer_worker import __main__ as command
from gpulayer_worker import admission, joining
from gpulayer_worker.__main__ import main
from gpulayer_worker.agent import Agent
from gpulayer_worker.credential import Credential
from gpulayer_worker.environ import allowed
from tests.support.answering import Answering, answering, of_json, problem

WORKERS = [{"id": "w1", "name": "alpha", "connected": True}, {"id": "w2", "name": "beta", "connected": False}]


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Path]:
    """A data folder whose control plane knows two workers, and takes the token 't'."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.headers["Authorization"] == "Bearer t"
            self.send_response(200 if known else 401)
            self.end_headers()
            self.wfile.write(json.dumps(WORKERS).encode() if known else b"{}")

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    publish(tmp_path / "plane", server.server_port)
    yield tmp_path / "plane"
    server.shutdown()
    thread.join()
    server.server_close()


def publish(folder: Path, port: int, token: str = "t") -> None:
    endpoint = Endpoint(url=f"http://127.0.0.1:{port}", token=token, pid=1, version="0")
    folder.mkdir(exist_ok=True)
    (folder / "endpoint.json").write_bytes(msgspec.json.encode(endpoint))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The keepers that would have been started."""
    found: list[list[str]] = []

    def execv(_: str, argv: list[str]) -> int:
        found.append(argv)
        return 0

    monkeypatch.setattr(command.os, "execv", execv)
    for module in (admission, joining):
        monkeypatch.setattr(module, "GONE_S", 0.0)
    return found


def join(plane: Path, data: Path, *more: str) -> int:
    return main(["join", "--control-plane", str(plane), "--data", str(data), *more])


def test_it_becomes_the_keeper(tmp_path: Path, plane: Path, started: list[list[str]]) -> None:
    assert join(plane, tmp_path / "w", "--name", "gamma") == 0
    assert started[0][1:5] == ["-m", "gpulayer_worker.keeper", "--data", str(tmp_path / "w")]


def test_a_control_plane_that_does_not_answer_is_waited_for(tmp_path: Path, started: list[list[str]]) -> None:
    publish(tmp_path / "plane", 1)
    assert join(tmp_path / "plane", tmp_path / "w") == 0
    assert len(started) == 1


def test_a_wrong_token(
    tmp_path: Path, plane: Path, started: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    port = int(msgspec.json.decode((plane / "endpoint.json").read_bytes())["url"].rsplit(":", 1)[1])
    publish(plane, port, token="w")
    assert join(plane, tmp_path / "w") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"refuses the token of {plane}/endpoint.json" in line
    assert not started


@pytest.mark.parametrize(("id", "refused"), [("w1", True), ("w2", False), ("w3", False)])
def test_an_id_that_is_connected_already(
    tmp_path: Path, plane: Path, started: list[list[str]], capsys: pytest.CaptureFixture[str], id: str, refused: bool
) -> None:
    data = tmp_path / "w"
    data.mkdir()
    (data / "worker.json").write_text(json.dumps({"id": id}))
    (data / "keeper.lock").touch()
    assert join(plane, data) == (2 if refused else 0)
    assert len(started) == (0 if refused else 1)
    assert (f"worker alpha is connected already, from another folder with the id of {data}/worker.json"
            in capsys.readouterr().err) is refused  # fmt: skip


def test_a_folder_with_a_keeper_is_the_keepers_to_refuse(tmp_path: Path, plane: Path, started: list[list[str]]) -> None:
    data = tmp_path / "w"
    data.mkdir()
    (data / "worker.json").write_text(json.dumps({"id": "w1"}))
    with (data / "keeper.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert join(plane, data) == 0
    assert len(started) == 1


def test_a_folder_on_a_network_file_system(
    tmp_path: Path,
    plane: Path,
    started: list[list[str]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command, "network_filesystem", lambda _: "nfs4")
    assert join(plane, tmp_path / "w") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{tmp_path}/w lies on a network file system (nfs4)" in line
    assert "give --data a folder on a local disk" in line
    assert not started


# ---------------------------------------------------------------- by a token, and by a credential of its own

TOKEN = "gl-join-secret"


@pytest.fixture
def elsewhere() -> Iterator[Answering]:
    """A control plane that lets everybody in."""
    with answering(lambda asked: of_json(201, {"credential": "gl-worker-x"})) as plane:
        yield plane


def agent_of(argv: list[str]) -> list[str]:
    """The agent's own words in a keeper's command line."""
    return argv[argv.index("--") + 1 :]


def test_a_joined_worker_carries_its_token_nowhere(
    tmp_path: Path, elsewhere: Answering, started: list[list[str]]
) -> None:
    data = tmp_path / "w"
    assert main(["join", f"{elsewhere.url}/x/", "--token", TOKEN, "--data", str(data), "--name", "alpha"]) == 0
    assert [asked.line for asked in elsewhere.asked] == ["POST /x/v1/join"]
    [argv] = started
    assert not any(TOKEN in word or "gl-worker-x" in word for word in argv)
    agent = agent_of(argv)
    assert agent[1:5] == ["-m", "gpulayer_worker", "agent", "--joined"]
    assert "--control-plane" not in agent  # it may not look for anything beside it, however folders are called
    kept = msgspec.json.decode((data / "credential.json").read_bytes(), type=Credential)
    assert kept == Credential(url=f"{elsewhere.url}/x", credential="gl-worker-x")


def test_later_joins_need_no_token(tmp_path: Path, elsewhere: Answering, started: list[list[str]]) -> None:
    data = tmp_path / "w"
    assert main(["join", elsewhere.url, "--token", TOKEN, "--data", str(data)]) == 0
    for again in ([], [elsewhere.url], [f"{elsewhere.url}/"]):
        assert main(["join", *again, "--data", str(data)]) == 0
    assert [asked.line for asked in elsewhere.asked] == ["POST /v1/join", *["GET /v1/health"] * 3]
    assert started == [started[0]] * 4


def test_a_credential_that_was_revoked(
    tmp_path: Path, elsewhere: Answering, started: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "w"
    assert main(["join", elsewhere.url, "--token", TOKEN, "--data", str(data)]) == 0
    elsewhere.answer = lambda _: problem(401, "token_revoked", "the credential of worker w was revoked", "ask")
    assert main(["join", "--data", str(data)]) == 1
    (begun, line) = capsys.readouterr().err.splitlines()
    assert begun.startswith(
        f"gpulayer-worker: {platform.node()} works for {elsewhere.url}; its log is {data}/logs/agent"
    )
    assert line == f"gpulayer-worker: {elsewhere.url} refuses it: the credential of worker w was revoked: ask"
    assert len(started) == 1


def test_a_line_that_is_pasted_again_goes_on_with_the_credential_that_it_brought(
    tmp_path: Path, elsewhere: Answering, started: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    data, other = tmp_path / "w", tmp_path / "other"
    line = ["join", elsewhere.url, "--token", TOKEN]
    assert main([*line, "--data", str(data)]) == 0
    used = problem(401, "token_used", "the token was used already, by w", "ask")
    elsewhere.answer = lambda asked: used if asked.token == TOKEN else of_json(200, {"connected": False})
    assert main([*line, "--data", str(data)]) == 0
    (begun, note, again) = capsys.readouterr().err.splitlines()
    assert begun == again
    assert note == (
        "gpulayer-worker: the token of this line has ended; "
        f"this worker goes on with its own credential, {data}/credential.json"
    )
    assert started == [started[0]] * 2
    assert main([*line, "--data", str(other)]) == 1  # a worker that never joined
    assert "refuses it: the token was used already, by w: ask" in capsys.readouterr().err
    with answering(elsewhere.answer) as another:  # nor is it a credential for elsewhere
        assert main(["join", another.url, "--token", TOKEN, "--data", str(data)]) == 1
    elsewhere.answer = lambda asked: used if asked.token == TOKEN else problem(401, "token_revoked", "revoked", "ask")
    capsys.readouterr()
    assert main([*line, "--data", str(data)]) == 1
    assert capsys.readouterr().err == f"gpulayer-worker: {elsewhere.url} refuses it: revoked: ask\n"
    assert len(started) == 2


def test_the_folder_of_a_control_plane_goes_before_a_credential(
    tmp_path: Path, plane: Path, elsewhere: Answering, started: list[list[str]]
) -> None:
    data = tmp_path / "w"
    assert main(["join", elsewhere.url, "--token", TOKEN, "--data", str(data)]) == 0
    assert join(plane, data) == 0
    assert agent_of(started[1])[4:6] == ["--control-plane", str(plane)]
    assert main(["join", "--local", "--control-plane", str(plane), "--data", str(data)]) == 0
    assert agent_of(started[2])[4:6] == ["--control-plane", str(plane)]
    assert len(elsewhere.asked) == 1


def test_another_address_needs_another_token(
    tmp_path: Path,
    plane: Path,
    elsewhere: Answering,
    started: list[list[str]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = tmp_path / "w"
    assert main(["join", elsewhere.url, "--token", TOKEN, "--data", str(data)]) == 0
    monkeypatch.setenv("GPULAYER_DATA", str(plane))
    assert main(["join", "http://127.0.0.1:1", "--data", str(data)]) == 2
    assert f"no token for http://127.0.0.1:1: {plane}/endpoint.json is for" in capsys.readouterr().err
    monkeypatch.setenv("GPULAYER_DATA", str(tmp_path / "nothing"))
    assert main(["join", "http://127.0.0.1:1", "--data", str(data)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "or paste the join line of one on another machine, with its --token" in line
    assert len(started) == 1


@pytest.mark.parametrize(
    "words",
    [
        ["--token", TOKEN],
        ["http://host", "--token", TOKEN, "--control-plane", "folder"],
        ["host:8888", "--token", TOKEN],
        ["http://host:8888/?token=secret", "--token", TOKEN],
        ["http://127.0.0.1:1", "--token", ""],
        ["http://127.0.0.1:1", "--token", TOKEN, "--slots", "0"],
    ],
)
def test_what_is_no_join_line(
    tmp_path: Path, started: list[list[str]], capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert main(["join", *words, "--data", str(tmp_path / "w")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("gpulayer-worker: ")
    assert "secret" not in line
    assert not (tmp_path / "w").exists()
    assert not started


def test_where_the_machine_is_and_its_labels_go_to_the_agent(
    tmp_path: Path, plane: Path, started: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["join", "--control-plane", str(plane), "--data", str(tmp_path / "w")]
    assert main([*words, "--region", "eu", "--zone=eu-a", "--label", "team=vision", "--label", "rack=-7"]) == 0
    agent = agent_of(started[0])
    assert {"--region=eu", "--zone=eu-a", "--label=team=vision", "--label=rack=-7"} <= set(agent)
    assert main([*words, "--label", "team"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "gpulayer-worker: --label 'team': give KEY=VALUE without spaces, such as team=vision"


def test_plain_http_beyond_loopback_is_refused_but_for_jupyters_own_port(
    tmp_path: Path, started: list[list[str]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = ["--data", str(tmp_path / "w")]
    assert main(["join", "http://192.0.2.1:8765", "--token", TOKEN, *data]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "http://192.0.2.1:8765 is plain http: the token, and all that follows, would cross the network" in line
    assert "paste the https line that `gpulayer up` shows" in line
    assert not (tmp_path / "w").exists()
    joined: list[tuple[str, str]] = []
    monkeypatch.setattr(joining, "join", lambda url, token, *more: joined.append((url, token)) or "")
    assert main(["join", "http://192.0.2.1:8888/gpulayer", "--token", TOKEN, *data]) == 0
    assert joined == [("http://192.0.2.1:8888/gpulayer", TOKEN)]
    assert "is not encrypted, as the pages of that Jupyter server are not" in capsys.readouterr().err
    assert len(started) == 1


def test_a_token_does_not_stay_in_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process begins anew without it, before it does anything else: a pipe brings it."""
    begun: list[tuple[list[str], str]] = []

    def execv(program: str, argv: list[str]) -> int:
        assert program == sys.executable
        fd = int(argv[argv.index("--token-fd") + 1])
        assert os.get_inheritable(fd)
        with open(fd, encoding="utf-8") as pipe:
            begun.append((argv[1:-1], pipe.read()))
        assert "-m" not in argv  # Python would look for modules in the current folder, which may be anybody's
        raise SystemExit(0)

    monkeypatch.setattr(command.os, "execv", execv)
    for words in (
        ["https://box:8443", "--token", TOKEN, "--name", "alpha"],
        ["https://box:8443", f"--token={TOKEN}", "--name", "alpha"],
    ):
        with pytest.raises(SystemExit):
            command.join_main(words)
        monkeypatch.setattr(sys, "argv", ["gpulayer-worker", "join", *words])
        with pytest.raises(SystemExit):
            main()
    expected = ["https://box:8443", "--name", "alpha", "--token-fd"]
    assert [(words[-4:], token) for words, token in begun] == [(expected, TOKEN)] * 4
    assert ["join_main()" in words[1] for words, _ in begun] == [True, False] * 2
    assert ["join" in words for words, _ in begun] == [False, True] * 2


def test_a_remote_clients_variables_end_here(
    tmp_path: Path, elsewhere: Answering, started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the keeper nor what it starts is a client of another control plane."""
    for name in REMOTE:
        monkeypatch.setenv(name, "secret")
    assert main(["join", elsewhere.url, "--token", TOKEN, "--data", str(tmp_path / "w")]) == 0
    assert not any(name in os.environ for name in REMOTE)
    assert not any(name in allowed(dict.fromkeys(REMOTE, "secret")) for name in REMOTE)


def test_a_control_plane_that_can_not_be_reached(
    tmp_path: Path, started: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["join", "http://127.0.0.1:1", "--token", TOKEN, "--data", str(tmp_path / "w")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "http://127.0.0.1:1 can't be reached" in line
    assert not started


def test_the_agent_of_a_joined_worker_reads_its_own_file_each_time(
    tmp_path: Path, elsewhere: Answering, started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And looks for no blobs beside it, not even where a control plane's folder is."""
    data = tmp_path / "w"
    assert main(["join", elsewhere.url, "--token", TOKEN, "--data", str(data)]) == 0
    found: list[tuple[str, str]] = []

    async def run(agent: Agent) -> int:
        for credential in ("gl-worker-x", "gl-worker-y"):
            kept = Credential(url=elsewhere.url, credential=credential)
            (data / "credential.json").write_bytes(msgspec.json.encode(kept))
            endpoint = agent.endpoint()
            found.append((endpoint.url, endpoint.token))
        (data / "credential.json").unlink()
        with pytest.raises(OSError, match=r"credential\.json"):
            agent.endpoint()
        assert agent.blobs_beside() is None
        return 0

    monkeypatch.setattr(Agent, "run", run)
    assert main(agent_of(started[0])[3:]) == 0
    assert found == [(elsewhere.url, "gl-worker-x"), (elsewhere.url, "gl-worker-y")]
