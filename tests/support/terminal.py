"""`gpulayer` as a person runs it: with its streams in pipes, or in a terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from tests.support.processes import PATIENCE_S

GPULAYER = [sys.executable, "-m", "gpulayer.cli"]


class Cli:
    """Runs command lines in a folder."""

    def __init__(self, folder: Path, env: dict[str, str]):
        self.folder = folder
        self.env = env

    def run(
        self, *words: str | bytes, code: int = 0, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run to the end; its exit code is looked at."""
        done = subprocess.run(
            [*GPULAYER, *words],
            cwd=self.folder,
            env=self.env | (env or {}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert done.returncode == code, f"{words}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def fails(self, *words: str | bytes, code: int, env: dict[str, str] | None = None) -> str:
        """The one line that says why."""
        done = self.run(*words, code=code, env=env)
        lines = done.stderr.splitlines()
        assert len(lines) == 1, done.stderr
        assert "Traceback" not in done.stderr
        return lines[0]

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Start; whoever asks sees to its end."""
        return subprocess.Popen(
            [*GPULAYER, *words],
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def screen(self, *words: str, env: dict[str, str] | None = None) -> Screen:
        """Start in a terminal of its own."""
        return Screen([*GPULAYER, *words], self.folder, self.env | (env or {}))


class Screen:
    """A program in a terminal: what it shows, and the keys that are pressed there."""

    def __init__(self, command: Sequence[str], folder: Path, env: dict[str, str]):
        self.shown = ""
        ours, its = pty.openpty()
        self._fd = ours
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=env | {"TERM": "xterm-256color"},
            stdin=its,
            stdout=its,
            stderr=its,
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(its)

    @property
    def plain(self) -> str:
        """What was shown, without colours and other commands to the terminal."""
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.shown)

    def until(self, text: str, *, after: int = 0, timeout_s: float = PATIENCE_S) -> int:
        """Read until a text was shown behind the place `after`; the place behind it."""
        deadline = time.monotonic() + timeout_s
        while text not in self.shown[after:]:
            assert self._read(deadline - time.monotonic()), f"{text!r} was not shown:\n{self.shown}"
        return self.shown.index(text, after) + len(text)

    def press(self, keys: str) -> None:
        """Press keys; '\\x03' is Ctrl-C."""
        os.write(self._fd, keys.encode())

    def hang_up(self) -> None:
        """Close the terminal."""
        os.close(self._fd)
        self._fd = -1

    def end(self, timeout_s: float = PATIENCE_S) -> int:
        """Its exit code, once all was read that it shows."""
        deadline = time.monotonic() + timeout_s
        while self._read(deadline - time.monotonic()):
            pass
        return self.process.wait(timeout_s)

    def _read(self, timeout_s: float) -> bool:
        """Whether anything came; at the end nothing does."""
        if not select.select([self._fd], [], [], max(0.0, timeout_s))[0]:
            return False
        try:
            data = os.read(self._fd, 65536)
        except OSError:  # nobody has the other end any more
            return False
        self.shown += data.decode(errors="replace")
        return bool(data)

    def __enter__(self) -> Screen:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self._fd >= 0:
            os.close(self._fd)


def _take_terminal() -> None:
    """In the child: its standard input is its controlling terminal, so that Ctrl-C reaches it."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
