"""A control plane and a worker of the checkout, and a plain IPython shell with our extension."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from benchmarks.home import Home
from gpulayer.client.api import Api
from gpulayer.protocol.types import JobView, WorkerView
from tests.support import fakenvml

T = TypeVar("T")

_PATIENCE_S = 60.0


class Failed(RuntimeError):
    """A step did not do what it should: what was wanted, what was seen."""


class Deployment:
    """A control plane, a worker and a plain IPython shell with our extension.

    On the CPU the worker's one card is made up: NVML is a module of the tests, in the folder `fake`.
    """

    def __init__(self, home: Home, accelerator: str):
        self.home = home
        self.fake = home.root / "nvml"
        made_up = fakenvml.fake_pynvml(self.fake, fakenvml.t4())
        self._worker_env = made_up if accelerator == "cpu" else {}
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
        self._launch({}, "gpulayer_server", "--data", str(self.home.data), "--port", "0")
        until(lambda: (self.home.data / "endpoint.json").exists(), "the control plane's endpoint.json")
        join = ("join", "--control-plane", str(self.home.data), "--data", str(self.worker))
        self._launch(self._worker_env, "gpulayer_worker", *join)
        self.api = Api(self.home.endpoint)
        self.shell.run_line_magic("load_ext", "gpulayer")
        return until(self._connected, "a connected worker")

    def _launch(self, env: dict[str, str], module: str, *arguments: str) -> None:
        with (self.home.root / f"{module}.log").open("ab") as log:
            command = [sys.executable, "-m", module, *arguments]
            subprocess.Popen(
                command,
                cwd="/",
                env=os.environ | env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

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

    def seen(self) -> WorkerView:
        """The worker, as the control plane sees it now."""
        return until(self._connected, "a connected worker")

    @property
    def containment(self) -> str:
        """How the worker holds processes together."""
        return json.loads((self.worker / "keeper.json").read_bytes())["containment"]

    def last_job(self) -> JobView:
        """The newest job."""
        return self.api.jobs(limit=1)[0]

    def pid(self, name: str) -> int:
        """Of the worker's 'keeper' or 'agent' that runs now."""
        return json.loads((self.worker / f"{name}.json").read_bytes())["pid"]


def until(look: Callable[[], T | None], what: str, patience_s: float = _PATIENCE_S) -> T:
    """What `look` gives once it gives something. Raises `Failed` after `patience_s` seconds."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        with contextlib.suppress(FileNotFoundError):
            found = look()
            if found:
                return found
        time.sleep(0.05)  # files and HTTP tell no news
    raise Failed(f"waited {patience_s:.0f} s in vain for {what}")
