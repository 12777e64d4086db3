"""A pasted token is exchanged, or nothing is left of the attempt."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulayer.protocol.pin import fingerprint
from gpulayer_server.tls import Certificate, own_certificate
from gpulayer_worker import joining
from gpulayer_worker.credential import Credential, JoinError, read_credential
from gpulayer_worker.joining import check, exchange, join
from tests.support.answering import Answer, Answering, Asked, answering, of_json, problem

JOINED = of_json(201, {"credential": "gl-worker-x"})
TOKEN = "gl-join-secret"


@pytest.fixture
def plane() -> Iterator[Answering]:
    """A control plane that lets everybody in."""
    with answering(lambda _: JOINED) as plane:
        yield plane


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "worker"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "GONE_S", 0.0)


def refused(plane: Answering | str, data: Path, token: str = TOKEN) -> JoinError:
    """Why the exchange fails; in one line, without the token."""
    url = plane if isinstance(plane, str) else plane.url
    with pytest.raises(JoinError) as error:
        exchange(url, token, data, "alpha")
    text = str(error.value)
    assert text.isprintable()
    assert TOKEN not in text
    assert text.startswith(url) or error.value.code != 1
    return error.value


# ---------------------------------------------------------------- the exchange


def test_a_token_becomes_a_credential_of_the_workers_own(plane: Answering, data: Path) -> None:
    exchange(plane.url + "/user/x/gpulayer", TOKEN, data, "alpha")
    [asked] = plane.asked
    assert (asked.line, asked.token) == ("POST /user/x/gpulayer/v1/join", TOKEN)
    assert asked.body["name"] == "alpha"
    assert asked.body["worker_id"] in (data / "worker.json").read_text()
    assert read_credential(data) == Credential(url=plane.url + "/user/x/gpulayer", credential="gl-worker-x")
    assert stat.S_IMODE((data / "credential.json").stat().st_mode) == 0o600
    assert stat.S_IMODE(data.stat().st_mode) == 0o700
    assert not any(TOKEN.encode() in path.read_bytes() for path in data.iterdir())


def test_who_joins_again_is_the_same_worker_with_another_credential(plane: Answering, data: Path) -> None:
    exchange(plane.url, TOKEN, data, "alpha")
    plane.answer = lambda _: of_json(201, {"credential": "gl-worker-y"})
    exchange(plane.url, TOKEN, data, "alpha")
    first, second = plane.asked
    assert first.body == second.body
    found = read_credential(data)
    assert found is not None
    assert found.credential == "gl-worker-y"


def test_a_connection_of_the_past_is_waited_for(plane: Answering, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "GONE_S", 60.0)
    monkeypatch.setattr(joining, "_LOOK_S", 0.0)
    plane.answer = lambda _: problem(409, "worker_connected") if len(plane.asked) < 3 else JOINED
    exchange(plane.url, TOKEN, data, "alpha")
    assert len(plane.asked) == 3
    assert read_credential(data) is not None


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (problem(401, "unauthorized", "wrong or missing token"), "does not know this token: paste the whole join line"),
        (problem(401, "token_used", "the token p was used already, by b", "ask"), "refuses it: the token p was used"),
        (problem(401, "token_expired", "the token p has expired", "ask"), "refuses it: the token p has expired: ask"),
        (problem(401, "token_revoked", "the token p was revoked", "ask"), "refuses it: the token p was revoked: ask"),
        (problem(403, "wrong_role", "a token of the role admin may not", "it needs the role join"), "the role join"),
        (problem(507, "store_failed", "could not write", "the disk is full"), ": could not write: the disk is full"),
        (
            problem(409, "worker_connected", "worker b is connected already"),
            "worker b is connected already, from another folder",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("folder", ["none", "empty", "with an id"])
def test_a_refusal_says_why_and_leaves_the_folder_as_it_was(
    plane: Answering, data: Path, answer: Answer, said: str, folder: str
) -> None:
    if folder != "none":
        data.mkdir()
    if folder == "with an id":
        (data / "worker.json").write_text('{"id": "w1"}')
    plane.answer = lambda _: answer
    error = refused(plane, data)
    assert said in str(error)
    assert error.code == 1
    assert data.exists() is (folder != "none")
    assert (data / "worker.json").exists() is (folder == "with an id")
    assert not (data / "credential.json").exists()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Answer(headers={"Content-Type": "text/html; charset=UTF-8"}, body=b"<html>"), "answered 200 with text/html"),
        (Answer(status=404, headers={"Content-Type": "text/html"}), "answered 404 with text/html"),
        (
            Answer(status=302, headers={"Location": "/hub/login"}),
            "answered 302 with no content type, which leads to /hub",
        ),
        (of_json(403, {"message": "Forbidden"}), "answered 403 with application/json"),
        (of_json(201, {"credential": 1}), "answered 201"),
        (of_json(201, []), "answered 201"),
        (of_json(200, {"credential": "x"}), "answered 200"),
        (Answer(status=201, headers={"Content-Type": "application/json"}), "answered 201"),
        (of_json(401, {"no": "problem"}, "application/problem+json"), "answered 401"),
        (problem(500, "x" * 70_000), "answered 500"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_who_answers_is_no_control_plane(plane: Answering, data: Path, answer: Answer, said: str) -> None:
    plane.answer = lambda _: answer
    error = refused(plane, data)
    assert f"{plane.url} is not a GPUlayer address: it {said}" in str(error)
    assert "paste the whole join line, as it was shown, with all of its path" in str(error)
    assert not data.exists()


def test_nobody_listens_there(data: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    error = refused(f"http://127.0.0.1:{port}", data)
    assert "can't be reached" in str(error)
    assert "Connection refused" in str(error)
    assert "whether the address is right" in str(error)
    assert not data.exists()


def test_a_name_that_nobody_has(data: Path) -> None:
    assert "can't be reached" in str(refused("http://no-such-host.invalid:1", data))
    assert not data.exists()


def test_plain_http_where_https_was_asked_for(plane: Answering, data: Path) -> None:
    assert "can't be reached" in str(refused(plane.url.replace("http", "https"), data))
    assert not data.exists()


def test_an_answer_that_is_lost_leaves_the_id_to_ask_again_with(plane: Answering, data: Path) -> None:
    plane.answer = lambda _: Answer(status=0)
    error = refused(plane, data)
    assert "broke off before it answered" in str(error)
    assert "try the same line again" in str(error)
    plane.answer = lambda _: JOINED
    exchange(plane.url, TOKEN, data, "alpha")
    lost, again = plane.asked
    assert lost.body == again.body


@pytest.mark.parametrize("token", ["", " ", "a b", "tökén", "a\nb", "a\x00b"])
def test_what_is_no_token_goes_nowhere(plane: Answering, data: Path, token: str) -> None:
    assert refused(plane, data, token).code == 2
    assert plane.asked == []
    assert not data.exists()


def test_a_folder_with_a_keeper_keeps_its_token(plane: Answering, data: Path) -> None:
    data.mkdir()
    (data / "keeper.lock").write_text("4711\n")
    with (data / "keeper.lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        error = refused(plane, data)
    assert error.code == 3
    assert f"process 4711 is the keeper of {data} already" in str(error)
    assert plane.asked == []


def test_a_folder_that_can_not_be_had(plane: Answering, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        JoinError, match=r"file/worker can't be this worker's folder: .*; mend that, or give another --data"
    ):
        exchange(plane.url, TOKEN, tmp_path / "file" / "worker", "alpha")
    assert plane.asked == []


def test_a_proxy_that_is_none(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "nonsense://:x")
    with pytest.raises(JoinError, match="the proxy that this environment names can't be used"):
        exchange("http://control-plane.invalid", TOKEN, data, "alpha")


# ---------------------------------------------------------------- a credential that is there already


def checked(plane: Answering | str, data: Path) -> str:
    """Why the stored credential is no good, '' where it is."""
    url = plane if isinstance(plane, str) else plane.url
    said = ""
    try:
        check(Credential(url=url, credential="gl-worker-x"), data)
    except JoinError as error:
        said = str(error)
    assert said.isprintable()
    return said


HEALTHY = of_json(200, {"version": "1", "epoch": 1, "connected": False})
IS_CONNECTED = of_json(200, {"version": "1", "epoch": 1, "connected": True})


@pytest.mark.parametrize(
    "answer",
    [
        HEALTHY,
        of_json(200, {"version": "1", "epoch": 1}),
        Answer(headers={"Content-Type": "text/html"}),
        Answer(status=401, headers={"Content-Type": "text/html"}),
        Answer(status=502, headers={"Content-Type": "text/html"}),
        problem(507, "store_failed"),
        Answer(status=0),
    ],
)
def test_a_credential_that_may_be_good_is_tried(plane: Answering, data: Path, answer: Answer) -> None:
    plane.answer = lambda _: answer
    assert checked(plane, data) == ""
    assert plane.asked[0] == Asked(line="GET /v1/health", token="gl-worker-x", body=None)


def test_a_control_plane_that_does_not_answer_is_waited_for(data: Path) -> None:
    assert checked("http://127.0.0.1:1", data) == ""


def test_a_credential_that_ended_is_said_at_once(plane: Answering, data: Path) -> None:
    plane.answer = lambda _: problem(401, "token_revoked", "the credential of worker alpha was revoked", "ask")
    assert checked(plane, data) == f"{plane.url} refuses it: the credential of worker alpha was revoked: ask"
    plane.answer = lambda _: problem(401, "unauthorized")
    assert f"{plane.url} does not know the credential of {data}/credential.json" in checked(plane, data)


def test_a_worker_that_is_connected_from_another_folder(plane: Answering, data: Path) -> None:
    plane.answer = lambda _: IS_CONNECTED
    data.mkdir()
    for _ in ("no lock", "a lock that nobody holds"):
        assert "is connected already, from another folder with the id" in checked(plane, data)
        (data / "keeper.lock").touch()
    with (data / "keeper.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert checked(plane, data) == ""  # it is this one: its keeper says so


def test_of_a_worker_that_was_just_there_the_connection_goes(
    plane: Answering, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "GONE_S", 60.0)
    monkeypatch.setattr(joining, "_LOOK_S", 0.0)
    plane.answer = lambda _: IS_CONNECTED if len(plane.asked) < 3 else HEALTHY
    assert checked(plane, data) == ""
    assert len(plane.asked) == 3


def test_the_lock_is_free_after_an_exchange(plane: Answering, data: Path) -> None:
    exchange(plane.url, TOKEN, data, "alpha")
    with (data / "keeper.lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert os.listdir(data) != []


# ---------------------------------------------------------------- the pin


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[tuple[Answering, Certificate]]:
    """A control plane with a certificate of its own."""
    certificate = own_certificate(tmp_path)
    with answering(lambda _: JOINED) as plane:
        plane.server.socket = certificate.context().wrap_socket(plane.server.socket, server_side=True)
        plane.url = plane.url.replace("http:", "https:")
        yield plane, certificate


def test_the_pinned_certificate_is_kept_with_the_credential(secured: tuple[Answering, Certificate], data: Path) -> None:
    plane, certificate = secured
    assert join(plane.url, TOKEN, data, "alpha", certificate.fingerprint.upper()) == ""
    kept = read_credential(data)
    assert kept is not None
    assert (kept.url, kept.credential, kept.fingerprint) == (plane.url, "gl-worker-x", certificate.fingerprint)
    assert fingerprint(kept.certificate) == certificate.fingerprint
    endpoint = kept.endpoint()
    assert (endpoint.fingerprint, endpoint.certificate) == (kept.fingerprint, kept.certificate)
    plane.answer = lambda _: of_json(200, {"connected": False})
    check(kept, data)
    assert [asked.line for asked in plane.asked] == ["POST /v1/join", "GET /v1/health"]


def test_a_wrong_fingerprint_sends_nothing_and_says_both(secured: tuple[Answering, Certificate], data: Path) -> None:
    """Situation 18."""
    plane, certificate = secured
    wrong = f"SHA256:{'0' * 64}"
    with pytest.raises(JoinError) as refused:
        join(plane.url, TOKEN, data, "alpha", wrong)
    line = str(refused.value)
    assert line.isprintable()
    assert f"presents the fingerprint {certificate.fingerprint}, expected was {wrong}" in line
    assert "nothing was sent" in line
    assert "at the line that `gpulayer up` shows now" in line
    assert plane.asked == []
    assert not data.exists()


def test_a_certificate_that_nobody_vouches_for_needs_its_fingerprint(
    secured: tuple[Answering, Certificate], data: Path
) -> None:
    plane, _ = secured
    with pytest.raises(JoinError, match="or paste the whole line, with its --tls-fingerprint"):
        join(plane.url, TOKEN, data, "alpha")
    assert plane.asked == []
    assert not data.exists()


@pytest.mark.parametrize(
    ("url", "text", "code", "said"),
    [
        ("http://127.0.0.1:1", f"SHA256:{'0' * 64}", 2, "goes with an https address"),
        ("https://127.0.0.1:1", "SHA256:00", 2, "is not a fingerprint such as SHA256:"),
        ("https://127.0.0.1:1", f"SHA256:{'0' * 64}", 1, "https://127.0.0.1:1 can't be reached: "),
    ],
)
def test_a_pin_that_can_not_be_looked_at(data: Path, url: str, text: str, code: int, said: str) -> None:
    with pytest.raises(JoinError, match=said) as refused:
        join(url, TOKEN, data, "alpha", text)
    assert refused.value.code == code
    assert not data.exists()
