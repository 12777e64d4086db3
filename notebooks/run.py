"""Run a notebook headless on two workers of this machine, its output on the terminal as it comes.

`python notebooks/run.py notebooks/quickstart.ipynb`. A control plane, the workers and the notebook's kernel are started
in a folder of their own and ended again; nothing else on this machine is touched.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty
from typing import Any

import nbformat
from jupyter_client.manager import KernelManager

from gpulayer.client.api import Api
from gpulayer.protocol.endpoint import read_endpoint

CELL_S = 300.0
JOIN_S = 60.0
GREY, RED, RESET = ("\x1b[90m", "\x1b[31m", "\x1b[0m") if sys.stdout.isatty() else ("", "", "")


def main() -> int:
    """Exit code 1 when a cell raised."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--workers", nargs="+", default=["alpha", "beta"], metavar="NAME")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpul-") as folder, deployment(Path(folder), options.workers) as data:
        return run(options.notebook.absolute(), data)


@contextmanager
def deployment(folder: Path, workers: list[str]) -> Iterator[Path]:
    """A control plane and workers; yields the data folder."""
    data = folder / "data"
    server = subprocess.Popen(
        [sys.executable, "-m", "gpulayer_server", "--data", str(data), "--announce"],
        stdout=subprocess.PIPE,
        stderr=(folder / "control-plane.log").open("wb"),
        text=True,
    )
    keepers: list[subprocess.Popen[bytes]] = []
    try:
        if server.stdout is None or not server.stdout.readline():
            raise RuntimeError((folder / "control-plane.log").read_text())
        for name in workers:
            command = [sys.executable, "-m", "gpulayer_worker", "join", "--control-plane", str(data)]
            command += ["--data", str(folder / name), "--name", name, "--slots", "2"]
            keepers.append(subprocess.Popen(command))
        wait_for(data, workers)
        yield data
    finally:
        for process in [*keepers, server]:
            process.send_signal(signal.SIGTERM)
        for process in [*keepers, server]:
            process.wait(timeout=30)


def wait_for(data: Path, workers: list[str]) -> None:
    """Return once all workers have joined: a cell that no known worker could take is refused at once."""
    endpoint = read_endpoint(data)
    if endpoint is None:
        raise RuntimeError(f"{data}/endpoint.json is not there")
    api, deadline = Api(endpoint), time.monotonic() + JOIN_S
    while not {worker.name for worker in api.workers() if worker.connected} >= set(workers):
        if time.monotonic() > deadline:
            raise RuntimeError(f"{', '.join(workers)} did not join within {JOIN_S:.0f} s")
        time.sleep(0.05)  # another process tells the control plane: there is nothing to wait for


def run(path: Path, data: Path) -> int:
    """Run the code cells in order in a kernel of their own; stop at the first that raises."""
    notebook = nbformat.read(path, as_version=4)
    manager = KernelManager(kernel_name="python3")
    environment = {**os.environ, "GPULAYER_DATA": str(data), "JPY_SESSION_NAME": str(path)}
    manager.start_kernel(cwd=str(path.parent), env=environment)
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        for cell in notebook.cells:
            if cell.cell_type == "code" and not run_cell(client, cell.source):
                return 1
        return 0
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def run_cell(client: Any, source: str) -> bool:
    """Show a cell and what it prints; False when it raised."""
    print("\n" + "\n".join(f"{GREY}│ {line}{RESET}" for line in source.splitlines()), flush=True)
    message_id = client.execute(source)
    raised, deadline = False, time.monotonic() + CELL_S
    while time.monotonic() < deadline:
        try:
            message = client.get_iopub_msg(timeout=1)
        except Empty:
            continue
        if message["parent_header"].get("msg_id") != message_id:
            continue
        content, kind = message["content"], message["msg_type"]
        if kind == "status" and content["execution_state"] == "idle":
            return not raised
        raised = raised or kind == "error"
        show(kind, content)
    print(f"{RED}the cell did not end within {CELL_S:.0f} s{RESET}")
    return False


def show(kind: str, content: dict[str, Any]) -> None:
    """One output, as text."""
    if kind == "stream":
        print(content["text"], end="", flush=True)
    elif kind == "error":
        print(RED + "\n".join(content["traceback"]) + RESET, flush=True)
    elif kind in ("display_data", "update_display_data", "execute_result"):
        text = content["data"].get("text/plain", "")
        status = (content.get("transient") or {}).get("display_id", "").startswith("gpulayer-status")
        print(f"{GREY}{text}{RESET}" if status else text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
