"""Whether a control plane takes this worker: what `join` asks before it becomes the keeper.

Apart from the command, since a local worker, which its control plane starts itself, asks nobody.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import time
from collections.abc import Callable
from pathlib import Path

from gpulayer.protocol.endpoint import Endpoint, data_folder, on_loopback, read_endpoint
from gpulayer.protocol.pin import unencrypted
from gpulayer_worker.credential import GONE_S, JoinError, address, read_credential


def admit(options: argparse.Namespace, data: Path, say: Callable[[str], None]) -> str:
    """Why this worker does not come in; '' where it does, and where nobody answers now: the agent waits for it.

    `options.joined` says afterwards whether it has a credential of its own: from now on, by a token, or since before.

    Arguments:
        options: of the command line.
        data: the worker's folder.
        say: takes a line for the person in the terminal.

    Raises `JoinError`.
    """
    options.url = address(options.url) if options.url else None
    options.joined = _joined(options, data, say)
    options.control_plane = options.control_plane or data_folder()
    if options.joined:
        credential = read_credential(data)
        if credential is not None:
            log = data / "logs" / "agent.log"
            say(f"{options.name} works for {credential.url}; its log is {log}; Ctrl-C ends it and what runs here")
        return ""
    endpoint = read_endpoint(options.control_plane)
    if endpoint is None:
        text = f"no control plane: {options.control_plane}/endpoint.json is not there; start one, or name its folder"
        return f"{text}, or paste the join line of one on another machine, with its --token"
    if options.url and options.url != endpoint.url:
        text = f"no token for {options.url}: {options.control_plane}/endpoint.json is for {endpoint.url}"
        return f"{text}; paste the whole join line, with its --token"
    return _refusal(endpoint, options, data)


def _joined(options: argparse.Namespace, data: Path, say: Callable[[str], None]) -> bool:
    """Whether this worker has a credential of its own: from now on, by a token, or since before. Raises `JoinError`."""
    from gpulayer_worker.joining import check, join

    if options.token is not None:
        if options.url is None or options.control_plane is not None:
            text = "--token goes with the address that it is for, and without --control-plane"
            raise JoinError(f"{text}: {options.program} join URL --token TOKEN", code=2)
        if unencrypted(options.url):
            text = f"{options.url} is plain http: the token, and all that follows, would cross the network in the clear"
            raise JoinError(f"{text}; paste the https line that `gpulayer up` shows on that machine", code=2)
        if options.url.startswith("http:") and not on_loopback(options.url):
            say(f"what goes to {options.url} is not encrypted, as the pages of that Jupyter server are not")
        note = join(options.url, options.token, data, options.name, options.tls_fingerprint or "")
        if note:
            say(note)
        return True
    credential = read_credential(data)
    if options.control_plane is not None or credential is None or options.url not in (None, credential.url):
        return False
    check(credential, data)
    return True


def _refusal(endpoint: Endpoint, options: argparse.Namespace, data: Path) -> str:
    """Why the control plane would not have this worker; '' also where none answers now: the agent waits for it."""
    deadline = time.monotonic() + GONE_S
    while True:
        answer = _workers(endpoint)
        if isinstance(answer, int):
            if answer not in (401, 403):
                return ""
            current = read_endpoint(options.control_plane)
            if current is not None and current != endpoint:
                endpoint = current  # another control plane took its place just now
                continue
            text = f"{endpoint.url} refuses the token of {options.control_plane}/endpoint.json"
            return f"{text}; name the data folder of the control plane that listens there with --control-plane"
        other = answer.get(_id_of_idle(data))
        if other is None:
            return ""
        if time.monotonic() > deadline:
            text = f"worker {other} is connected already, from another folder with the id of {data}/worker.json"
            return f"{text}; if this folder is a copy, remove that file: then it is a worker of its own"
        time.sleep(0.5)  # its connection may be of the past, which only time tells


def _workers(endpoint: Endpoint) -> dict[str, str] | int:
    """The names of the connected workers by their ids; the HTTP status of a refusal, 0 for no answer."""
    import httpx

    headers = {"Authorization": f"Bearer {endpoint.token}"}
    try:
        answer = httpx.get(f"{endpoint.url}/v1/workers", headers=headers, timeout=10.0, trust_env=False)
        listed = answer.json() if answer.status_code == 200 else []
        return {each["id"]: each["name"] for each in listed if each["connected"]} if listed else answer.status_code
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return 0


def _id_of_idle(data: Path) -> str:
    """The id of the worker whose folder this is, '' where it has none yet, or a keeper that runs: it will say so."""
    try:
        with (data / "keeper.lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return str(json.loads((data / "worker.json").read_bytes()).get("id", ""))
    except (OSError, ValueError, AttributeError):
        return ""
