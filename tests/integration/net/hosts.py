"""Machines on a network of a test's own: namespaces with an address each, on a bridge of which a cable may be pulled.

Each host's processes see their own loopback and one address, and share nothing else but the disk.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.processes import MARKER, PATIENCE_S, until

_NET = "10.231.77"
_OF_OTHERS = ("PYTEST", "GPULAYER", "JPY", "JUPYTER", "IPYTHON", "XDG_")
_ASKING = """
import json, sys
from pathlib import Path
import httpx
data = Path(sys.argv[1])
for line in sys.stdin:
    method, path, body = json.loads(line)
    endpoint = json.loads((data / "endpoint.json").read_bytes())
    headers = {"Authorization": "Bearer " + endpoint["token"]}
    answer = httpx.request(method, endpoint["url"] + path, headers=headers, json=body, trust_env=False, timeout=60)
    print(json.dumps([answer.status_code, answer.text]), flush=True)
"""


def why_not() -> str:
    """Why there are no such networks here; '' where there are."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces need root on Linux"
    for tool in ("ip", "nsenter"):
        if shutil.which(tool) is None:
            return f"there is no {tool} here"
    name = f"gpl{uuid.uuid4().hex[:6]}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"this machine allows no network namespaces: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return ""


def ip(*words: str) -> None:
    """`ip` with these words; an error of it is the test's."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"


class Host:
    """One machine: a namespace with an address, and a home."""

    def __init__(self, network: Network, name: str, number: int):
        self.name = name
        self.address = f"{_NET}.{number}"
        self.space = f"{network.prefix}{name}"
        self.home = network.folder / name
        self.home.mkdir()
        self._port = f"p{number}"
        self._network = network
        ip("netns", "add", self.space)
        ip("-n", self.space, "link", "set", "lo", "up")
        switch = network.switch
        ip("-n", self.space, "link", "add", "eth0", "type", "veth", "peer", "name", self._port, "netns", switch)
        ip("-n", self.space, "addr", "add", f"{self.address}/24", "dev", "eth0")
        ip("-n", self.space, "link", "set", "eth0", "up")
        ip("-n", self.space, "route", "add", "default", "via", f"{_NET}.254")
        ip("-n", switch, "link", "set", self._port, "up")
        self.plug()

    def plug(self) -> None:
        """Its cable is in."""
        ip("-n", self._network.switch, "link", "set", self._port, "master", "br0")

    def unplug(self) -> None:
        """Its cable is pulled at the far end: packets vanish, and nothing here says why."""
        ip("-n", self._network.switch, "link", "set", self._port, "nomaster")

    def start(self, *words: str, log: str, env: dict[str, str] | None = None, **more: Any) -> subprocess.Popen[bytes]:
        """`python` with these words, on this machine; what it says goes to a file of its home."""
        command = ["nsenter", f"--net=/run/netns/{self.space}", "--", sys.executable, *words]
        with (self.home / log).open("ab") as output:
            options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output} | more
            environment = self._network.env | {"HOME": str(self.home)} | (env or {})
            process: Any = subprocess.Popen(command, env=environment, cwd="/", **options)
            self._network.started.append(process)
            return process

    def said(self, log: str) -> str:
        """What a process wrote to its file."""
        path = self.home / log
        return path.read_text(errors="replace") if path.exists() else ""

    def pids(self) -> list[int]:
        """Every process of this machine."""
        listed = subprocess.run(["ip", "netns", "pids", self.space], capture_output=True, text=True, check=False)
        return [int(word) for word in listed.stdout.split()]

    def kill(self) -> None:
        """The machine dies: first its cable, so that nobody hears of it, then every process."""
        self.unplug()
        self.end(signal.SIGKILL)

    def end(self, number: int = signal.SIGTERM) -> None:
        """Signal every process until none is left."""

        def gone() -> bool:
            for pid in self.pids():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            return not self.pids()

        until(gone, lambda: f"the processes of {self.name} to end: {self.pids()}", timeout_s=20)


class Network:
    """Hosts on one bridge. As a context manager it leaves no process, no namespace and no folder behind."""

    def __init__(self, *names: str):
        self.prefix = f"gpl{uuid.uuid4().hex[:6]}-"
        self.folder = Path(tempfile.mkdtemp(prefix="gn", dir="/tmp"))  # short: paths of sockets are limited
        self.run = uuid.uuid4().hex
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_OF_OTHERS)}
        self.env = kept | {MARKER: self.run}
        self.switch = f"{self.prefix}switch"
        self.hosts: dict[str, Host] = {}
        self.started: list[subprocess.Popen[bytes]] = []
        self._asking: Any = None
        try:
            ip("netns", "add", self.switch)
            ip("-n", self.switch, "link", "add", "br0", "type", "bridge")
            ip("-n", self.switch, "link", "set", "br0", "up")
            for number, name in enumerate(names, 1):
                self.hosts[name] = Host(self, name, number)
        except BaseException:
            self.close()
            raise

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    # ---------------------------------------------------------------- asking the control plane, on its machine

    def ask(self, host: Host, method: str, path: str, body: Any = None) -> Any:
        """A request to the control plane whose data folder is `host`'s; the answer from JSON, or as text."""
        if self._asking is None:
            self._asking = host.start(
                "-c", _ASKING, str(host.home / "data"), log="asking.log", stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                text=True,
            )  # fmt: skip
        asking = self._asking
        asking.stdin.write(json.dumps([method, path, body]) + "\n")
        asking.stdin.flush()
        line = asking.stdout.readline()
        assert line, host.said("asking.log")
        status, text = json.loads(line)
        assert status < 400, (method, path, status, text)
        try:
            return json.loads(text)
        except ValueError:
            return text

    # ---------------------------------------------------------------- the end

    def close(self) -> None:
        """End everything; one thing that does not end keeps none of the others here."""
        with contextlib.ExitStack() as rest:  # the last one first
            rest.callback(shutil.rmtree, self.folder, ignore_errors=True)
            rest.callback(self._remove_spaces)
            for process in self.started:
                rest.callback(process.wait, PATIENCE_S)
            for host in self.hosts.values():
                rest.callback(host.end, signal.SIGKILL)
            if self._asking is not None:
                for pipe in (self._asking.stdin, self._asking.stdout):
                    rest.callback(pipe.close)

    def _remove_spaces(self) -> None:
        """All of this network's, also of a host that was only half made; their cables go with them."""
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
        for space in [line.split()[0] for line in listed.splitlines() if line.startswith(self.prefix)]:
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)

    def __enter__(self) -> Network:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
