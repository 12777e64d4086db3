"""A contestant as the benchmark sees it: a process that is asked for work, and says how long it took."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

_ANSWER_S = 180.0
_END_S = 30.0


class CallsFailed(RuntimeError):
    """Something did not go as every run must: the figures would mean nothing."""


class Rival:
    """A process that serves requests by `benchmarks.callswork.serving`. Raises `CallsFailed` if it does not."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        folder: Path,
        log: Path,
        leaves: bool = False,
    ):
        """Start it in `folder`, and wait until it is ready. What it prints goes to `log`.

        `leaves`: what it starts stays, and is for somebody else to end.
        """
        self.name = name
        self._leaves = leaves
        self._log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                env=env,
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
            )
        try:
            self.version = str(self._answer()["version"])
        except BaseException:
            self.close()
            raise

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """One piece of work, and what it says of it."""
        if self._process.stdin is None:
            raise CallsFailed(f"{self.name}'s input is closed")
        try:
            self._process.stdin.write(json.dumps({"do": do, **request}).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise CallsFailed(f"{self.name} is gone: {self._last_line()}") from error
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        if self._process.stdout is None:
            raise CallsFailed(f"{self.name}'s output is closed")
        ready, _, _ = select.select([self._process.stdout], [], [], _ANSWER_S)
        if not ready:
            raise CallsFailed(f"{self.name} gave no answer for {_ANSWER_S:.0f} s: {self._last_line()}")
        line = self._process.stdout.readline()  # one line an answer: nothing more is ever buffered
        if not line:
            raise CallsFailed(f"{self.name} ended: {self._last_line()}")
        return json.loads(line)

    def _last_line(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no word from it"

    def close(self) -> None:
        """Let it end by itself; what is left of it after half a minute, and then of its children, is killed."""
        if self._process.returncode is not None:
            return
        children: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            children = [] if self._leaves else psutil.Process(self._process.pid).children(recursive=True)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        _, left = psutil.wait_procs(children, timeout=5.0)
        for child in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
