"""Keeping the agent running."""

from __future__ import annotations

import contextlib
import os
import signal
import time

from gpulayer_worker.keeper.eventloop import READ
from gpulayer_worker.keeper.identity import alive, send_signal
from gpulayer_worker.keeper.records import read_json, remove, rotate_log, write_json
from gpulayer_worker.keeper.spawning import AGENT_GROUP, GROUP_VARIABLE, KEEPER_VARIABLE, Launch, Program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpulayer_worker.keeper.context import Context
    from gpulayer_worker.keeper.eventloop import Timer
    from gpulayer_worker.keeper.identity import Watch

ASKED_TO_STOP = 0
REFUSED = 77

FIRST_PAUSE_S = 0.1
LAST_PAUSE_S = 10.0
STEADY_S = 30.0  # an agent that lived this long starts the pauses anew


def next_pause_s(last_s: float, lived_s: float) -> float:
    """How long to wait before the next start, before jitter.

    Arguments:
        last_s: the pause before the start of the agent that just ended; 0 when there was none.
        lived_s: how long that agent lived.
    """
    if last_s == 0 or lived_s >= STEADY_S:
        return FIRST_PAUSE_S
    return min(LAST_PAUSE_S, last_s * 2)


def jittered(pause_s: float) -> float:
    """Half of a pause and a random part of the other half."""
    return pause_s * (0.5 + int.from_bytes(os.urandom(2), "big") / 0x20000)


class Agent:
    """Starts the agent, starts it again when it dies, and ends it.

    Arguments:
        context: what the keeper's parts share.
        argv: the agent's command line.
        env: its environment.
        on_end: called when the agent ended for good: with 0 (asked to stop), 77 (refused), or None after `stop`.
    """

    def __init__(
        self, context: Context, argv: list[str], env: Mapping[str, str], on_end: Callable[[int | None], None]
    ) -> None:
        self._context = context
        self._argv = argv
        self._env = {**env, GROUP_VARIABLE: AGENT_GROUP, KEEPER_VARIABLE: context.key}
        self._on_end = on_end
        self.start_time: int | str = 0
        self.before_start: Callable[[], None] | None = None
        self._launch: Launch | None = None
        self._watch: Watch | None = None
        self._timer: Timer | None = None
        self._pause_s = 0.0
        self._begun = 0.0
        self._announced: int | None = None
        self._stopping = False

    @property
    def pid(self) -> int | None:
        """The running agent's pid; None between two."""
        return self._context.agent_pid

    def adopt(self) -> bool:
        """Take over the agent of an earlier keeper; False when it does not run."""
        record = read_json(self._context.folder.agent)
        if record is None or record.get("boot_id") != self._context.boot_id:
            return False
        pid, start_time = record.get("pid"), record.get("start_time")
        if not isinstance(pid, int) or start_time is None or not alive(self._context.table, pid, start_time):
            return False
        self._context.agent_pid, self.start_time = pid, start_time
        self._begun = time.monotonic()
        self._watch = self._context.watch(pid, start_time, lambda: self._ended(None))
        return True

    def start(self) -> None:
        """Start the agent; when that can't be done now, try again later."""
        if self._stopping:
            return
        self._timer = None
        self._begun = time.monotonic()
        self._announced = None
        if self.before_start is not None:
            self.before_start()
        folder = self._context.folder
        program = Program(
            argv=self._argv, env=self._env, cwd=folder.root, stdout=folder.agent_log, stderr=folder.agent_log
        )
        launch = None
        try:
            rotate_log(folder.agent_log)
            launch = Launch(program)
            self._record(launch)
        except OSError as error:  # no more processes, or no space for the record
            if launch is not None:
                launch.discard()
            self._context.log(f"cannot start the agent: {error}")
            self._again()
            return
        self._launch = launch
        self._context.loop.add(launch.error_fd, READ, self._decide)
        launch.go()

    def announce(self, code: int) -> None:
        """The agent says how it is about to end; this counts when it is not our child and its status is unknown."""
        self._announced = code

    def reaped(self, pid: int, status: int) -> bool:
        """Take note that a child ended; False when it is not the agent."""
        if pid != self.pid or self._watch is not None:
            return False
        if self._launch is not None:
            self._decide()
        self._ended(os.waitstatus_to_exitcode(status))
        return True

    def stop(self) -> None:
        """Ask the agent to end, and start it no more."""
        self._stopping = True
        if self._timer is not None:
            self._timer.cancel()
        if self.pid is None:
            self._on_end(None)
        else:
            self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the agent at once."""
        if self.pid is not None:
            self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self.pid is not None:
            send_signal(self._context.table, self.pid, self.start_time, number)

    def _record(self, launch: Launch) -> None:
        process = self._context.table.one(launch.pid)
        self.start_time = process.start_time if process is not None else 0
        identity = {"pid": launch.pid, "start_time": self.start_time, "boot_id": self._context.boot_id}
        write_json(self._context.folder.agent, identity)
        self._context.agent_pid = launch.pid

    def _decide(self) -> None:
        launch = self._launch
        error = launch.outcome() if launch is not None else None
        if launch is None or error is None:
            return
        self._context.loop.remove(launch.error_fd)
        launch.close()
        self._launch = None
        if error:  # the child exits, so the next try follows
            self._context.log(error)

    def _ended(self, code: int | None) -> None:
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # mostly it left nothing
                os.killpg(self.pid, signal.SIGKILL)
        self._context.agent_pid = None
        self._watch = None
        remove(self._context.folder.agent)
        code = self._announced if code is None else code
        if self._stopping:
            self._on_end(None)
        elif code in (ASKED_TO_STOP, REFUSED):
            self._on_end(code)
        else:
            self._again()

    def _again(self) -> None:
        self._pause_s = next_pause_s(self._pause_s, time.monotonic() - self._begun)
        self._timer = self._context.loop.call_later(jittered(self._pause_s), self.start)
