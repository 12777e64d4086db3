"""NVML at arm's length: a child process asks it, and may be given up.

A process, not a thread: NVML hangs in the driver where a thread can't be ended and would keep its process from ending
too, and it has ended the processes that it was loaded into. The agent never loads it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import platform
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpulayer_worker.inventory.nvml import devices_present

log = logging.getLogger("gpulayer.worker")

_LINE_BYTES = 4 << 20
_END_S = 1.0
_CHILD = ("-m", "gpulayer_worker.inventory.nvmlchild")
_LIBRARY = "libnvidia-ml.so.1"
_SEARCHED = ("/lib", "/usr/lib", "/lib64", "/usr/lib64")  # by the loader, beside what its cache lists


class NvmlTrouble(RuntimeError):
    """NVML could not be asked: the loader's error, NVML's own, no answer in time, or the end of the child."""


class NvmlGuard:
    """Asks the child, one question at a time; the next question after trouble starts a fresh one.

    Arguments:
        command: the child's; by default ours, in the agent's interpreter.
        absent: whether there is nothing to ask, so that no child is started; it may block for some milliseconds.
    """

    def __init__(self, command: Sequence[str] = (sys.executable, *_CHILD), absent: Callable[[], bool] = lambda: False):
        self._command = tuple(command)
        self._absent = absent
        self._lock = asyncio.Lock()
        self._child: asyncio.subprocess.Process | None = None
        self._given_up: set[asyncio.Task[int]] = set()
        self.present: bool | None = None  # whether devices are there, whatever NVML says; None: not known yet

    async def ask(self, question: dict[str, Any], deadline_s: float) -> dict[str, Any]:
        """The answer. Raises NvmlTrouble; after `deadline_s` seconds without an answer the child is given up."""
        async with self._lock:
            try:
                return await asyncio.wait_for(self._ask(question), deadline_s)
            except asyncio.TimeoutError:
                self._abandon()
                raise NvmlTrouble(f"no answer within {deadline_s:g} s") from None
            except (OSError, ValueError, KeyError) as error:
                self._abandon()
                raise NvmlTrouble(f"the process that asks it says what can't be read: {error}") from error
            except asyncio.CancelledError:
                self._abandon()  # its answer would be taken for the next question's
                raise

    async def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        child = self._child
        if child is None or child.returncode is not None:
            child = await self._start()
        if child.stdin is None:
            raise OSError("the process that asks NVML has no input")
        child.stdin.write(json.dumps(question).encode() + b"\n")
        answer = await self._line(child)
        if "failed" in answer:
            if answer.get("over"):
                self._child = None
                await child.wait()
            raise NvmlTrouble(answer["failed"])
        return answer["answer"]

    async def _start(self) -> asyncio.subprocess.Process:
        if await asyncio.to_thread(self._absent):
            self.present = False
            raise NvmlTrouble("no NVIDIA device is here, and no library that tells of them")
        self._child = child = await asyncio.create_subprocess_exec(
            *self._command,
            cwd="/",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_LINE_BYTES,
        )
        self.present = bool((await self._line(child))["present"])
        return child

    async def _line(self, child: asyncio.subprocess.Process) -> dict[str, Any]:
        line = await child.stdout.readline() if child.stdout is not None else b""
        if not line:
            self._child = None
            code = await child.wait()
            how = _signal_name(-code) if code < 0 else f"exit code {code}; see the agent's log"
            raise NvmlTrouble(f"the process that asked it ended: {how}")
        return json.loads(line)

    def _abandon(self) -> None:
        """End the child, and do not wait: one that hangs in the driver ends when the driver lets it."""
        child, self._child = self._child, None
        if child is not None and child.returncode is None:
            log.warning("the process that asks NVML (pid %d) is given up", child.pid)
            child.kill()
            ending = asyncio.ensure_future(child.wait())
            self._given_up.add(ending)
            ending.add_done_callback(self._given_up.discard)

    async def close(self) -> None:
        """End the child."""
        child, self._child = self._child, None
        if child is not None and child.returncode is None:
            if child.stdin is not None:
                child.stdin.close()
            ending = asyncio.ensure_future(child.wait())
            await asyncio.wait({ending}, timeout=_END_S)
            if child.returncode is None:
                child.kill()
                self._given_up.add(ending)
        if self._given_up:
            await asyncio.wait(self._given_up, timeout=_END_S)


def nothing_to_ask(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the machine shows no NVIDIA device, and the loader would find no NVML either: a child could only say so.

    A device may show itself in no such way and be there all the same, as under WSL; NVML then knows of it.
    """
    if sys.platform != "linux" or devices_present(root):
        return False
    if "PYTHONPATH" in environ:  # the child's bindings may be somebody's own, which load another library
        return False
    listed = root / "etc/ld.so.cache"
    try:
        if _LIBRARY.encode() in listed.read_bytes():
            return False
    except OSError:  # a system that looks elsewhere
        return False
    words = environ.get("LD_LIBRARY_PATH", "").replace(";", ":").split(":")
    many = [f"{folder}/{platform.machine()}-linux-gnu" for folder in _SEARCHED]
    folders = [*filter(None, words), sys.prefix + "/lib", sys.base_prefix + "/lib", *_SEARCHED, *many]
    return not any((root / folder.lstrip("/") / _LIBRARY).exists() for folder in folders)


def _signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"
