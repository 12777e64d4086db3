"""A real JupyterLab with our extension, and a page of it in a real Chromium."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat

from tests.support.deployment import Deployment
from tests.support.processes import PATIENCE_S, until
from tests.support.sitecode import STARTS_SOON

ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / "jupyter_ext" / "gpulayer_jupyter" / "labextension"
CHROMIUM = "/usr/bin/chromium"
CHROMIUM_FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
]
_QUIET_LAB = [
    "--LabApp.news_url=None",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    "--LabApp.extension_manager=readonly",
    "--LabApp.expose_app_in_browser=True",
    "--JupyterNotebookApp.expose_app_in_browser=True",
]


class Lab:
    """A Jupyter server's process in a deployment's folder, with JupyterLab or (app 'notebook') Notebook 7."""

    def __init__(self, deployment: Deployment, name: str = "lab", *, base_url: str = "/", app: str = "lab"):
        self.deployment = deployment
        self._home = deployment.folder / name
        self._app = app
        self.base_url = base_url
        self.tree = "notebooks" if app == "notebook" else "lab/tree"
        self.work = deployment.folder / "work"  # the notebooks, the same for every server of this deployment
        self.process: subprocess.Popen[bytes] | None = None
        for folder in (self.work, self._home / "runtime", self._home / "config", self._home / "labextensions"):
            folder.mkdir(parents=True, exist_ok=True)
        (self._home / "labextensions" / "gpulayer").symlink_to(BUILT)
        quiet = self._home / "settings" / "@jupyterlab" / "apputils-extension"
        quiet.mkdir(parents=True)
        (quiet / "notification.jupyterlab-settings").write_text('{"fetchNews": "false"}')  # asks no questions

    def start(self, *arguments: str) -> None:
        """Start it, and return once it answers."""
        home = self._home
        env = self.deployment.env | {
            "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
            "JUPYTER_CONFIG_DIR": str(home / "config"),
            "JUPYTER_DATA_DIR": str(home / "data"),
            "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
            "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
            "MPLCONFIGDIR": str(self.deployment.folder / "mpl"),
            "GPULAYER_LOCAL_WORKER": "--slots 4 --reserve-bytes 0 --name laptop",
            **STARTS_SOON,
        }
        command = [sys.executable, "-m", "jupyter", self._app, "--no-browser", "--allow-root", "--ip=127.0.0.1"]
        command += ["--port=0", f"--ServerApp.base_url={self.base_url}", f"--ServerApp.root_dir={self.work}"]
        command += ["--ServerApp.jpserver_extensions", "gpulayer_jupyter=True", *_QUIET_LAB]
        for app in ("LabApp", "JupyterNotebookApp"):
            command += [f"--{app}.extra_labextensions_path={home / 'labextensions'}"]
        command += arguments
        with (home / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, env=env, cwd=self.work, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        until(self._is_ready, lambda: f"JupyterLab to start:\n{self.log}")

    def _is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"JupyterLab ended:\n{self.log}"
        return "is running at" in self.log and self._listens()

    def _listens(self) -> bool:
        about = self._about()  # Jupyter writes it, and what the log says, before it binds its port
        if not about:
            return False
        try:
            socket.create_connection(("127.0.0.1", about["port"]), PATIENCE_S).close()
        except ConnectionRefusedError:
            return False
        return True

    def _about(self) -> dict[str, Any]:
        assert self.process is not None
        path = self._home / "runtime" / f"jpserver-{self.process.pid}.json"
        return json.loads(path.read_bytes()) if path.exists() and path.stat().st_size else {}

    @property
    def log(self) -> str:
        """What it wrote."""
        path = self._home / "server.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def url(self, path: str) -> str:
        """An address on this server, with its token."""
        about = self._about()
        joint = "&" if "?" in path else "?"
        return f"http://127.0.0.1:{about['port']}{self.base_url}{path}{joint}token={about['token']}"

    def notebook(self, name: str, *cells: str, **files: str) -> Path:
        """A notebook with these code cells in a folder of its own, with these modules beside it (without '.py')."""
        folder = self.work / name
        folder.mkdir(exist_ok=True)
        for module, text in files.items():
            (folder / f"{module}.py").write_text(text)
        made = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(source=source) for source in cells],
            metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
        )
        path = folder / f"{name}.ipynb"
        nbformat.write(made, path)
        return path

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End it, and wait for its end."""
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(PATIENCE_S)
            self.process = None


class NotebookPage:
    """One notebook, open in JupyterLab. What a person does, and what they see."""

    def __init__(self, page: Any, lab: Lab, path: Path):
        self.page = page
        self._lab = lab
        self._path = path

    def open(self) -> NotebookPage:
        """Load the page anew, and wait until the notebook's kernel is there."""
        inside = self._path.relative_to(self._lab.work)
        self.page.goto(self._lab.url(f"{self._lab.tree}/{inside}?reset"))
        return self.loaded()

    def reload(self) -> NotebookPage:
        """As a person reloads it."""
        self.page.reload()
        return self.loaded()

    def loaded(self) -> NotebookPage:
        """Wait until the notebook and its kernel are there."""
        self.page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=PATIENCE_S * 1000)
        self.page.wait_for_function(_KERNEL_IS_THERE, timeout=PATIENCE_S * 1000)
        return self

    def command(self, name: str, **arguments: Any) -> None:
        """One of JupyterLab's commands, begun and not waited for."""
        self.page.evaluate(
            "([name, args]) => { void window.jupyterapp.commands.execute(name, args); }", [name, arguments]
        )

    def cell(self, number: int) -> Any:
        """The cell of that number, from 0."""
        return self.page.locator(".jp-Notebook .jp-Cell").nth(number)

    def run(self, number: int) -> None:
        """Select a cell and run it, as Ctrl+Enter does."""
        self.cell(number).locator(".jp-InputArea-editor").click()
        self.page.keyboard.press("Control+Enter")

    def text(self, number: int) -> str:
        """The text of a cell's outputs."""
        return "\n".join(self.cell(number).locator(".jp-OutputArea-output").all_inner_texts())

    def await_text(
        self, number: int, wanted: str | Callable[[str], bool], what: str = "", *, timeout_s: float = PATIENCE_S
    ) -> str:
        """Wait until a cell's output holds a text, or fits."""
        fits = wanted if callable(wanted) else lambda text: wanted in text
        return until(
            lambda: text if fits(text := self.text(number)) else None,
            lambda: f"{what or wanted!r} in cell {number}, which shows:\n{self.text(number)}",
            timeout_s,
        )

    def running(self, number: int) -> bool:
        """Whether the cell is said to run."""
        return "*" in self.cell(number).locator(".jp-InputPrompt").inner_text()

    def await_end(self, number: int) -> None:
        """Wait until the cell has a number: it is over."""
        prompt = self.cell(number).locator(".jp-InputPrompt")
        until(lambda: re.search(r"\d", prompt.inner_text()), lambda: f"the end of cell {number}:\n{self.text(number)}")

    def save(self) -> Any:
        """Save it, and read what is on the disk then."""
        before = self._path.stat().st_mtime_ns
        self.page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
        until(lambda: self._path.stat().st_mtime_ns != before, "the notebook to be saved")
        return nbformat.read(self._path, as_version=4)


# one that is busy when the page comes says nothing of itself until it is idle
_KERNEL_IS_THERE = """() => {
  const session = window.jupyterapp?.shell.currentWidget?.sessionContext?.session;
  return session?.kernel?.connectionStatus === 'connected';
}"""


def saved_text(cell: Any) -> str:
    """All text of a saved cell's outputs, in order; of displays their plain text, each on lines of its own."""
    parts: list[str] = []
    for output in cell.outputs:
        shown = output.get("data", {}).get("text/plain", "")
        parts.append(output.text if output.output_type == "stream" else f"{shown}\n")
    return "".join(parts)


def chromium_is_there() -> bool:
    """Whether this machine has the browser, and the panel was built."""
    return os.path.exists(CHROMIUM) and (BUILT / "package.json").exists()
