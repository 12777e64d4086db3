"""Joining over the network: a pasted token is exchanged at once for the worker's own credential, which is kept."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec

from gpulayer.protocol.endpoint import Endpoint, is_token, write_private
from gpulayer.protocol.failpoints import reach
from gpulayer.protocol.pin import PinError, pin, read_fingerprint
from gpulayer.protocol.problems import ENDED_TOKENS, problem_in
from gpulayer.protocol.types import Problem, Struct
from gpulayer_worker.credential import GONE_S, LINE_AGAIN, Credential, JoinError, read_credential
from gpulayer_worker.layout import Layout
from gpulayer_worker.web import open_client

_TIMEOUT_S = 15.0
_LOOK_S = 0.5
_JOIN_TOKEN = "gl-join-"
_JOIN_LINE = "ask for a join line, which `gpulayer token create --role join` makes on the control plane's machine"
_LOOK = "look whether the address is right, and whether this machine may reach it"


def join(url: str, token: str, data: Path, name: str, fingerprint: str = "") -> str:
    """Have a credential for this address in the data folder; '' or a line about what was done otherwise.

    With a fingerprint the certificate is compared first: at any other one nothing is sent, and nothing made.

    A token is exchanged for it. Where that has ended, such as in a line that is pasted again after a restart, a worker
    that joined there before goes on with the credential that it got then. Raises `JoinError`.
    """
    there = _pinned(url, fingerprint)
    try:
        exchange(there, token, data, name)
    except JoinError as error:
        credential = read_credential(data)
        if not error.ended or credential is None or credential.url != url:
            raise
        check(credential, data)
        return f"the token of this line has ended; this worker goes on with its own credential, {data}/credential.json"
    return ""


def _pinned(url: str, fingerprint: str) -> Endpoint:
    """Where to go, with the certificate that was compared. Raises `JoinError`."""
    there = Endpoint(url=url, token="", pid=0, version="")
    if not fingerprint:
        return there
    if not url.startswith("https:"):
        text = f"--tls-fingerprint goes with an https address, which {url} is not"
        raise JoinError(f"{text}; {LINE_AGAIN}", code=2)
    try:
        wanted = read_fingerprint(fingerprint)
    except ValueError as error:
        raise JoinError(f"--tls-fingerprint: {error}; {LINE_AGAIN}", code=2) from None
    try:
        certificate = pin(url, wanted, _TIMEOUT_S)
    except PinError as error:
        text = "look on that machine, not by the network, at the line that `gpulayer up` shows now, and paste that"
        raise JoinError(f"{error}; {text}") from error
    except OSError as error:
        raise JoinError(f"{url} can't be reached: {_why(error)}; {_LOOK}") from error
    return msgspec.structs.replace(there, fingerprint=wanted, certificate=certificate)


def exchange(there: Endpoint | str, token: str, data: Path, name: str) -> None:
    """Exchange a token for a credential, and keep that in the data folder. Raises `JoinError`.

    `there`: an address, or an endpoint with the certificate that is pinned; its token is not looked at.

    Where the control plane says no, the folder is as it was. Where its answer is lost, the worker's id stays: with it
    the same line may be tried again.
    """
    if not is_token(token):
        raise JoinError(f"what follows --token is not a token; {LINE_AGAIN}", code=2)
    if isinstance(there, str):
        there = Endpoint(url=there, token="", pid=0, version="")
    there = msgspec.structs.replace(there, token=token)
    new_folder, new_id = not data.exists(), not (data / "worker.json").exists()
    try:
        with _held(data):
            kept = Credential(
                url=there.url,
                credential=_exchanged(there, data, name),
                fingerprint=there.fingerprint,
                certificate=there.certificate,
            )
            reach("join.exchanged")
            write_private(data / "credential.json", msgspec.json.encode(kept), durable=True)
            reach("join.stored")
    except JoinError as error:
        if new_id and error.answered and error.code != 3:
            _undo(data, new_folder)
        raise
    except OSError as error:
        raise JoinError(f"{data} can't be this worker's folder: {error}; mend that, or give another --data") from error


def check(credential: Credential, data: Path) -> None:
    """Ask whether a credential is still good, and its worker not connected already. Raises `JoinError`.

    No answer is no error: the agent waits for one. Nor is one by somebody else, such as a proxy whose control plane is
    just away.
    """
    deadline = time.monotonic() + GONE_S
    while True:
        try:
            answer = _ask(credential.endpoint(), "GET", "/v1/health")
        except JoinError:
            return
        problem = _problem(answer)
        if problem is not None and answer.status_code in (401, 403):
            raise JoinError(_refused(credential.url, problem, f"the credential of {data}/credential.json"))
        if answer.status_code != 200 or not _connected(answer) or _has_keeper(data):
            return
        if time.monotonic() > deadline:
            raise JoinError(_is_connected(credential.url, "this worker is connected already", data))
        time.sleep(_LOOK_S)  # its connection may be of the past, which only time tells


def _exchanged(endpoint: Endpoint, data: Path, name: str) -> str:
    body = msgspec.json.encode({"worker_id": Layout(data).worker_id(), "name": name})
    deadline = time.monotonic() + GONE_S
    while True:
        answer = _ask(endpoint, "POST", "/v1/join", body)
        problem = _problem(answer)
        if problem is None or problem.code != "worker_connected":
            break
        if time.monotonic() > deadline:
            raise JoinError(_is_connected(endpoint.url, problem.title, data))
        time.sleep(_LOOK_S)  # as above
    if problem is not None:
        ended = problem.code in ENDED_TOKENS
        text = _refused(endpoint.url, problem, "this token")
        if ended and not endpoint.token.startswith(_JOIN_TOKEN):  # another one of its role would not do either
            text = f"{endpoint.url} refuses it: {problem.title}, and it was none to join with; {_JOIN_LINE}"
        raise JoinError(text, ended=ended)
    try:
        if answer.status_code == 201:
            return msgspec.json.decode(answer.content, type=_Joined).credential
    except msgspec.MsgspecError:
        pass  # said below
    raise JoinError(_not_ours(endpoint.url, answer))


class _Joined(Struct, frozen=True, kw_only=True):
    credential: str


def _ask(endpoint: Endpoint, method: str, path: str, body: bytes | None = None) -> httpx.Response:
    """One request. Raises `JoinError` where there is no answer."""
    try:
        with open_client(endpoint, _TIMEOUT_S) as client:
            return client.request(method, path, content=body)
    except (httpx.ReadError, httpx.ReadTimeout, httpx.RemoteProtocolError) as error:
        text = f"{endpoint.url} broke off before it answered: {_why(error)}"
        raise JoinError(f"{text}; try the same line again", answered=False) from error
    except httpx.HTTPError as error:
        text = f"{endpoint.url} can't be reached: {_why(error)}"
        advice = _LOOK
        if "CERTIFICATE_VERIFY_FAILED" in text:
            advice = "add the authority of its certificate to those that this system trusts (SSL_CERT_FILE)"
            advice += ", or paste the whole line, with its --tls-fingerprint"
        raise JoinError(f"{text}; {advice}") from error
    except (httpx.InvalidURL, ValueError, ImportError) as error:
        raise JoinError(f"the proxy that this environment names can't be used: {error}", code=2) from error


def _why(error: Exception) -> str:
    text = re.sub(r"^\[Errno -?\d+\] ", "", " ".join(str(error).split()))
    return text or type(error).__name__


def _problem(answer: httpx.Response) -> Problem | None:
    return problem_in(answer.headers.get("Content-Type", ""), answer.content)


def _connected(answer: httpx.Response) -> bool:
    try:
        return msgspec.json.decode(answer.content, type=_Health).connected
    except msgspec.MsgspecError:
        return False  # an answer of somebody else


class _Health(Struct, frozen=True, kw_only=True):
    connected: bool = False


def _refused(url: str, problem: Problem, what: str) -> str:
    if problem.code == "unauthorized":
        return f"{url} does not know {what}: {LINE_AGAIN}, or ask for a new one"
    if problem.code in ENDED_TOKENS:
        return f"{url} refuses it: {problem.line()}"
    return f"{url}: {problem.line()}"


def _not_ours(url: str, answer: httpx.Response) -> str:
    kind = answer.headers.get("Content-Type", "").partition(";")[0] or "no content type"
    moved = f", which leads to {answer.headers['Location'][:200]}" if "Location" in answer.headers else ""
    text = f"{url} is not a GPUlayer address: it answered {answer.status_code} with {kind}{moved}"
    return f"{text}; {LINE_AGAIN}, with all of its path"


def _is_connected(url: str, who: str, data: Path) -> str:
    text = f"{url}: {who}, from another folder with the id of {data}/worker.json"
    return (
        f"{text}; if this folder is a copy, remove that file and join with a new line: then it is a worker of its own"
    )


# ---------------------------------------------------------------- the folder


@contextlib.contextmanager
def _held(data: Path) -> Iterator[None]:
    """The folder, made when missing, while no keeper and no other `join` has it. Raises `JoinError`, OSError."""
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(data / "keeper.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not _locked(fd):
            pid = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            text = f"process {pid} is the keeper of {data} already: stop it first, or give another --data"
            raise JoinError(text, code=3)
        yield
    finally:
        os.close(fd)


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _has_keeper(data: Path) -> bool:
    """Whether a keeper runs here: it is the one to say so."""
    try:
        with (data / "keeper.lock").open("rb") as lock:
            return not _locked(lock.fileno())
    except FileNotFoundError:
        return False


def _undo(data: Path, new_folder: bool) -> None:
    """Nothing of a refused attempt stays."""
    (data / "worker.json").unlink(missing_ok=True)
    if new_folder:
        (data / "keeper.lock").unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # somebody put something there
            data.rmdir()
