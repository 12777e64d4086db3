"""What all parts of one keeper share."""

from __future__ import annotations

import contextlib
import os

from gpulayer_worker.keeper.identity import Watch, boot_id
from gpulayer_worker.keeper.procs import process_table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpulayer_worker.keeper.eventloop import Loop
    from gpulayer_worker.keeper.records import Folder


class Context:
    """The loop, the folder, and what identifies this machine's boot and this worker's processes.

    `portable` keeps every part from using pidfds. Only `Agent` changes `agent_pid`; the rest never changes.
    """

    __slots__ = ("agent_pid", "boot_id", "folder", "keeper_pid", "key", "loop", "portable", "table")

    def __init__(self, *, loop: Loop, folder: Folder, portable: bool) -> None:
        self.loop = loop
        self.folder = folder
        self.portable = portable
        self.table = process_table()
        self.boot_id = boot_id()
        self.key = folder.key
        self.keeper_pid = os.getpid()
        self.agent_pid: int | None = None

    def watch(self, pid: int, start_time: int | str, callback: Callable[[], None]) -> Watch:
        """Call back once when this process, ours or not, has ended."""
        return Watch(self.loop, self.table, pid, start_time, callback, polling=self.portable)

    def log(self, text: str) -> None:
        """Say one line on standard error."""
        say(text)


def say(text: str, who: str = "gpulayer keeper") -> None:
    """One line on standard error, which is the terminal where the worker was started."""
    with contextlib.suppress(OSError):  # a closed terminal must not end the keeper
        os.write(2, f"{who}: {text}\n".encode(errors="replace"))
