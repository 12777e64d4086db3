"""The checks, one after the other, over a control plane and a worker of the checkout."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.gpucheck import devices
from benchmarks.gpucheck.cells import LINES, PRODUCT, WITHOUT, on, wanted_lines
from benchmarks.gpucheck.deployment import Deployment, Failed, until
from benchmarks.home import Home

_LINES = 100
_TOLERANCE = 1e-4  # of single precision over 2,048 terms


def check(accelerator: str) -> dict[str, Any]:
    """All steps; what was found. A step that fails ends the run and is named under 'failed'."""
    result: dict[str, Any] = {"accelerator": accelerator, "python": sys.version.split()[0]}
    began = time.monotonic()
    step = "start"
    try:
        with Home(files=20) as home, Deployment(home, accelerator) as deployment:
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


# ---------------------------------------------------------------- steps


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
    "inventory": devices.inventory,
    "frameworks": devices.frameworks,
    "product": product,
    "without": without,
    "peak": devices.peak,
    "foreign": devices.foreign,
    "sick": devices.sick,
    "agent_killed": agent_killed,
    "keeper_killed": keeper_killed,
}
