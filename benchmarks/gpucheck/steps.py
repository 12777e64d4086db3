"""The checks, one after the other, over a control plane and a worker of the checkout."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, TypeVar

from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from benchmarks.gpucheck.cells import LINES, PRODUCT, WITHOUT, on, wanted_lines
from benchmarks.home import Home
from gpulayer.client.api import Api
from gpulayer.protocol.types import JobView, WorkerView

T = TypeVar("T")

_LINES = 100
_PATIENCE_S = 60.0
_TOLERANCE = 1e-4  # of single precision over 2,048 terms


class Failed(RuntimeError):
    """A step did not do what it should: what was wanted, what was seen."""


def check(accelerator: str) -> dict[str, Any]:
    """All steps; what was found. A step that fails ends the run and is named under 'failed'."""
    result: dict[str, Any] = {"accelerator": accelerator, "python": sys.version.split()[0]}
    began = time.monotonic()
    step = "start"
    try:
        with Home(files=20) as home, Deployment(home) as deployment:
            for step, run in STEPS.items():
                start = time.monotonic()
                found = run(deployment, accelerator)
                result[step] = {**found, "seconds": round(time.monotonic() - start, 2)}
                print(f"✓ {step}: {json.dumps(result[step], ensure_ascii=False)}", flush=True)
            step = "end"
        result["end"] = {"left": 0}
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what the check found
        result["failed"] = step
        result["error"] = f"{type(error).__name__}: {error}"
        print(f"✗ {step}: {result['error']}", flush=True)
    result["seconds"] = round(time.monotonic() - began, 1)
    return result


class Deployment:
    """A control plane, a worker and a plain IPython shell with our extension."""

    def __init__(self, home: Home):
        self.home = home
        self.worker = home.root / "worker"
        os.environ.update(home.env())
        os.chdir(home.notebooks)
        self.shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))

    def __enter__(self) -> Deployment:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shell.run_line_magic("unload_ext", "gpulayer")
        os.chdir("/")
        if error is not None:  # nothing else will be left of the machine
            for path in sorted(self.home.root.glob("**/*.log")):
                if path.parent.name != "spool":
                    print(f"--- {path.relative_to(self.home.root)}")
                    print("\n".join(path.read_text(errors="replace").splitlines()[-30:]), flush=True)

    def start(self) -> WorkerView:
        """Start both; the worker as the control plane sees it."""
        self._launch("gpulayer_server", "--data", str(self.home.data), "--port", "0")
        until(lambda: (self.home.data / "endpoint.json").exists(), "the control plane's endpoint.json")
        self._launch("gpulayer_worker", "join", "--control-plane", str(self.home.data), "--data", str(self.worker))
        self.api = Api(self.home.endpoint)
        self.shell.run_line_magic("load_ext", "gpulayer")
        return until(self._connected, "a connected worker")

    def _launch(self, module: str, *arguments: str) -> None:
        with (self.home.root / f"{module}.log").open("ab") as log:
            command = [sys.executable, "-m", module, *arguments]
            subprocess.Popen(command, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def _connected(self) -> WorkerView | None:
        return next((worker for worker in self.api.workers() if worker.connected), None)

    def run(self, line: str, body: str) -> str:
        """Run a cell by the magic; what it printed. Raises `Failed` for one that did not succeed."""
        printed, said = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said):
            done = self.shell.run_cell(f"%%gpulayer {line}\n{body}")
        if done.error_in_exec is not None or done.error_before_exec is not None:
            tail = (printed.getvalue() + said.getvalue())[-2000:]
            raise Failed(f"a cell did not succeed: {done.error_in_exec or done.error_before_exec}; {tail}")
        return printed.getvalue()

    def last_job(self) -> JobView:
        """The newest job."""
        return self.api.jobs(limit=1)[0]

    def pid(self, name: str) -> int:
        """Of the worker's 'keeper' or 'agent' that runs now."""
        return json.loads((self.worker / f"{name}.json").read_bytes())["pid"]


def until(look: Callable[[], T | None], what: str) -> T:
    """What `look` gives once it gives something. Raises `Failed` after a minute."""
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        with contextlib.suppress(FileNotFoundError):
            found = look()
            if found:
                return found
        time.sleep(0.05)  # files and HTTP tell no news
    raise Failed(f"waited {_PATIENCE_S:.0f} s in vain for {what}")


# ---------------------------------------------------------------- steps


def inventory(deployment: Deployment, accelerator: str) -> dict[str, Any]:
    """What the worker sees of its machine."""
    worker = deployment.start()
    kinds = [device.kind for device in worker.inventory.devices]
    if accelerator == "cuda" and "cuda" not in kinds:
        raise Failed(f"no CUDA device in the inventory: {worker.inventory}")
    devices = [
        {"uuid": device.uuid, "kind": device.kind, "name": device.name, "vram_bytes": device.vram_bytes}
        for device in worker.inventory.devices
    ]
    containment = json.loads((deployment.worker / "keeper.json").read_bytes())["containment"]
    found = worker.inventory
    return {
        "devices": devices,
        "problems": list(found.problems),
        "cores": found.cpu_cores,
        "ram_bytes": found.ram_bytes,
        "containment": containment,
    }


def product(deployment: Deployment, accelerator: str) -> dict[str, Any]:
    """A matrix product on the device is what the CPU says; the cell sees its own device and no other."""
    found = json.loads(deployment.run(f"--accelerator {accelerator}", on(PRODUCT, accelerator)))
    if found["error"] > _TOLERANCE:
        raise Failed(f"the product differs from the CPU's by {found['error']:.2g}")
    if accelerator == "cuda":
        assigned = [device.uuid for device in deployment.last_job().devices]
        if found["visible"] != ",".join(assigned) or found["devices"] != len(assigned) or len(assigned) != 1:
            raise Failed(f"the cell was given {assigned} and saw {found['visible']!r}, {found['devices']} devices")
    return found


def without(deployment: Deployment, accelerator: str) -> dict[str, Any]:
    """A cell that asks for no accelerator sees none."""
    found = json.loads(deployment.run("", WITHOUT))
    if found["devices"] or (accelerator == "cuda" and found["visible"] != ""):
        raise Failed(f"a cell without --accelerator sees {found}")
    return found


def agent_killed(deployment: Deployment, accelerator: str) -> dict[str, Any]:
    """The agent is killed in the middle of a cell; the next one takes it up, and nothing is missing or doubled."""
    return _killed(deployment, accelerator, "agent")


def keeper_killed(deployment: Deployment, accelerator: str) -> dict[str, Any]:
    """The keeper is killed in the middle of a cell; the agent starts the next one."""
    return _killed(deployment, accelerator, "keeper")


def _killed(deployment: Deployment, accelerator: str, name: str) -> dict[str, Any]:
    before = deployment.pid(name)
    with _in_mid_cell(deployment, lambda: os.kill(before, signal.SIGKILL)):
        printed = deployment.run(f"--accelerator {accelerator}", on(LINES, accelerator, _LINES))
    if printed != wanted_lines(_LINES):
        raise Failed(f"after the kill of the {name} the output is not whole: {len(printed)} characters")
    job = deployment.last_job()
    if job.attempts != 1:
        raise Failed(f"job {job.id} took {job.attempts} attempts")
    after = until(lambda: _other(deployment.pid(name), before), f"a new {name}")
    return {"before": before, "after": after, "lines": _LINES, "state": job.state.value}


def _other(pid: int, before: int) -> int | None:
    return pid if pid != before else None


@contextlib.contextmanager
def _in_mid_cell(deployment: Deployment, act: Callable[[], None]) -> Iterator[None]:
    """Call `act` once the next job has printed something."""
    known = deployment.last_job().id
    acted: list[bool] = []

    def wait_and_act() -> None:
        until(lambda: _printing(deployment, known), "the cell's first output")
        act()
        acted.append(True)

    thread = threading.Thread(target=wait_and_act)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    if not acted:
        raise Failed("the cell ended before anything was killed")


def _printing(deployment: Deployment, known: str) -> bool:
    job = deployment.last_job()
    if job.id == known or job.attempt is None or job.terminal:
        return False
    streams = list((deployment.home.data / "streams").glob(f"*/{job.attempt}.stream"))
    return any(b"line 10 " in path.read_bytes() for path in streams)


STEPS: dict[str, Callable[[Deployment, str], dict[str, Any]]] = {
    "inventory": inventory,
    "product": product,
    "without": without,
    "agent_killed": agent_killed,
    "keeper_killed": keeper_killed,
}
