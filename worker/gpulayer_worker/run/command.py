"""Running one command: its files, its processes, its output, and nothing left after it.

A small command is a few calls from the assignment to its end, and no task of the loop: `begin` asks for its start, the
keeper tells of its end. What takes longer (files to fetch, files to send back) is a task of its own.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

from msgspec.structs import replace

from gpulayer.protocol.failpoints import reach
from gpulayer.protocol.messages import Assign
from gpulayer.protocol.types import CommandSpec, Outcome, State
from gpulayer.source import SourceError
from gpulayer_worker import link
from gpulayer_worker.environ import bound_cpus, for_devices, for_nodes
from gpulayer_worker.keeper.client import ExitRecord, KeeperError
from gpulayer_worker.run.commandspool import CommandSpool
from gpulayer_worker.run.commandwords import exit_code_of, from_exit, unstarted
from gpulayer_worker.run.devicememory import measuring
from gpulayer_worker.run.fetching import fetched
from gpulayer_worker.run.outcome import timed_out
from gpulayer_worker.run.outputwatch import OutputWatch
from gpulayer_worker.run.results import Results
from gpulayer_worker.run.services import Over, Services

log = logging.getLogger("gpulayer.worker")

_YOUNG_S = 0.005  # so long a command's begin waits for its end: of a small one only the end is told
_GONE_S = 1.0  # so long its end waits for the last of its processes


def command_of(assign: Assign) -> CommandSpec:
    """The command of an attempt. Raises `ValueError` for one that has none."""
    if assign.spec.command is None:
        raise ValueError(f"attempt {assign.attempt} is no command")
    return assign.spec.command


class CommandRun:
    """One attempt of a command. `resumed`: an agent before us began it."""

    kernel = None  # as a cell has one
    session = None

    def __init__(self, services: Services, assign: Assign, *, resumed: bool = False, told: bool = False):
        """`told`: an agent before us told its end: only what is left of it is waited for. Raises OSError."""
        self._services = services
        self._assign = assign
        self._resumed = resumed
        self._name = assign.attempt
        self._command = command_of(assign)
        self._folder = services.layout.attempt(assign.attempt)
        self._spool = CommandSpool(self._folder, portable=services.portable, found=resumed)
        globs = self._command.output_globs
        self._results = Results(services, globs, self._folder, self._tell) if globs else None
        self._memory = measuring(services, assign, self._name)
        self._output = OutputWatch(services.watch, self._folder, self._spool, self._grew)
        self.ended = asyncio.Event()
        self._news = asyncio.Event()  # a wish, while its files are being fetched
        self._asked = False  # the keeper was asked to start it
        self._started_at: float | None = None  # seconds since the epoch
        self._began = False  # told
        self._record: ExitRecord | None = None
        self._gone = False
        self._finished = told  # its end is known, and what goes back is on its way
        self._over = told  # its end was told
        self._wish = ""  # 'cancel', 'timeout', 'kill': why its end is wanted
        self._wish_problem = ""
        self._grace_s = 0.0
        self._forced = False
        self._timers: list[asyncio.TimerHandle] = []
        if told:
            self._spool.look(last=True)

    @property
    def group(self) -> str:
        """Its processes, as the keeper knows them."""
        return self._name

    @property
    def running(self) -> bool:
        """Whether its end may come at any moment."""
        return self._asked and not self._over

    @property
    def workspace(self) -> Path:
        """Where it runs."""
        return self._folder / "workspace"

    @property
    def pristine(self) -> bool:
        """Whether its folder may be as it was given to it: it wrote nothing to its output, and had no files."""
        return self._spool.end == 0 and not self._command.bundle and self._results is None and not self._resumed

    # ---------------------------------------------------------------- wishes

    def interrupt(self, grace_s: float) -> None:
        """SIGTERM now, SIGKILL to all of it after `grace_s` seconds. Asked again, nothing changes."""
        if not self._wish:
            self._want("cancel", f"it did not stop within {grace_s:g} s of SIGTERM and was ended", grace_s)

    def kill(self, why: str) -> None:
        """End it at once."""
        self._want("kill", why, 0.0)

    def _want(self, wish: str, problem: str, grace_s: float) -> None:
        if self._results is not None:
            self._results.stop(wish, problem)
        if self._over or self._record is not None:
            return  # it has ended by itself
        self._wish, self._wish_problem, self._grace_s = wish, problem, grace_s
        self._news.set()
        if self._asked:
            self._carry_out_wish()  # else whoever prepares it sees the wish

    def _carry_out_wish(self) -> None:
        if self._grace_s > 0:
            self._services.go_on(self._name, self._ask_to_end())
            self._later(self._grace_s, self._force)
        else:
            self._force()

    async def _ask_to_end(self) -> None:
        try:
            await self._services.keeper.signal(self._name, signal.SIGTERM)
        except KeeperError as error:  # it has just ended, or could not be started
            log.info("command %s could not be asked to end: %s", self._name, error)

    def _force(self) -> None:
        if self._record is None:
            self._forced = True
            self._services.go_on(self._name, self._services.keeper.kill(self._name))

    def _timed_out(self, timeout_s: float) -> None:
        if not self._wish:
            self._want("timeout", timed_out(timeout_s, self._spool.last_line()), self._assign.spec.grace_s)

    def _check_wish(self) -> None:
        if self._wish:
            state = State.CANCELLED if self._wish == "cancel" else State.FAILED
            raise Over(Outcome(state=state, problem="" if self._wish == "cancel" else self._wish_problem))

    # ---------------------------------------------------------------- its stream

    def read(self, offset: int, size: int) -> bytes:
        """Bytes of the stream."""
        return self._spool.read(offset, size)

    def trim(self, offset: int) -> None:
        """What the control plane has may go."""
        self._spool.release(offset)

    def close(self) -> None:
        """Nothing of it is wanted any more."""
        self._quiet()
        self._spool.close()

    def tell_blocked(self) -> None:
        """A program that writes to its own files is not held up by us."""

    # ---------------------------------------------------------------- the start

    def begin(self) -> bool:
        """Start it now, if all that it needs is here; False: `run` gets it first. Raises OSError."""
        if self._resumed:
            self._services.keeper.look(self._name, self)
            return True
        if self._command.bundle:
            return False
        self._services.rooms.take(self._name)
        self._ask()
        return True

    async def run(self) -> None:
        """Get the files, then start it."""
        try:
            await self._prepare()
            self._check_wish()
        except Over as over:
            self._end(over.outcome)
        except SourceError as error:
            self._end(Outcome(state=State.FAILED, problem=str(error)))
        except OSError as error:
            self._end(Outcome(state=State.FAILED, problem=self._services.layout.trouble(error)))
        else:
            self._ask()

    async def _prepare(self) -> None:
        def make(tell: Callable[[str], None]) -> None:
            self._services.workspaces.fresh(self._command.bundle, self.workspace, tell)

        await fetched(make, tell=self._tell, check_wish=self._check_wish, pause=self._pause)
        if self._results is not None:
            await self._results.remember(self.workspace)

    async def _pause(self, seconds: float) -> None:
        """Wait, but not longer than until somebody wants the end."""
        try:
            await asyncio.wait_for(self._news.wait(), seconds)
        except asyncio.TimeoutError:
            return

    def _ask(self) -> None:
        reach("agent.workspace-made")
        cwd = self._cwd()
        if cwd is None:
            problem = f"the working folder {self._command.cwd!r} is not below what was sent: name one that is"
            self._end(Outcome(state=State.FAILED, problem=problem))
            return
        self._asked = True
        folder = str(self._folder)
        job: dict[str, Any] = {
            "id": self._name,
            "argv": self._command.argv,
            "env": self._environ(),
            "cwd": cwd,
            "stdout": f"{folder}/out",
            "stderr": f"{folder}/err",
        }
        cpus = bound_cpus(self._assign)
        if cpus:
            job["cpus"] = cpus
        self._services.keeper.run(job, self)

    def _cwd(self) -> str | None:
        if not self._command.cwd:
            return f"{self._folder}/workspace"
        path = PurePosixPath(self._command.cwd)
        return None if path.is_absolute() or ".." in path.parts else str(self.workspace / path)

    def _environ(self) -> dict[str, str]:
        env = {**self._command.env, "GPULAYER_JOB": self._assign.job, "GPULAYER_ATTEMPT": self._name}
        if self._assign.in_array:
            env["GPULAYER_ARRAY_INDEX"] = str(self._assign.index)
        for name, value in for_devices(self._assign.devices, self._services.devices).items():
            if value is not None:
                env[name] = value
        return env | for_nodes(self._assign)

    # ---------------------------------------------------------------- what the keeper tells

    def on_started(self, at: float) -> None:
        """It runs."""
        if self._started_at is not None or self._record is not None:
            return
        found = not self._asked
        self._asked = True
        self._started_at = at
        reach("agent.spawned")
        self._later(_YOUNG_S, self._settle)
        if found and self._wish:
            self._carry_out_wish()
        timeout_s = self._assign.spec.timeout_s
        if timeout_s is not None:
            self._later(max(0.0, timeout_s - (time.time() - at)), lambda: self._timed_out(timeout_s))

    def on_unstarted(self, step: str, number: int) -> None:
        """It can't be started."""
        self._gone = True
        path = self._command.env.get("PATH", self._services.keeper.path)
        problem = unstarted(step, number, self._command, path, str(self._services.layout.data))
        code = exit_code_of(step, number)
        self._end(Outcome(state=State.FAILED, exit_code=code, problem=problem))

    def on_ended(self, record: ExitRecord, *, gone: bool) -> None:
        """Its main process ended."""
        self._gone = self._gone or gone
        if self._record is None:
            self._record = record
            self._quiet()
            reach("agent.exit-told")
        if self._gone:
            self._finish()
        elif not self._finished:
            self._later(_GONE_S, self._finish)

    def on_cleared(self) -> None:
        """Nothing of it is left."""
        self._gone = True
        self._finish()

    def on_unknown(self) -> None:
        """The keeper knows nothing of it."""
        if self._over:  # it was told that nothing of it is left
            self.on_cleared()
        elif self._asked:  # it was ours: that keeper's journal is lost
            now = time.time()
            lost = ExitRecord(pid=0, start_time=0, boot_id="", unknown=True, started_at=now, ended_at=now)
            self.on_ended(lost, gone=True)
        else:  # the agent before us had not come so far
            self._resumed = False
            self._services.go_on(self._name, self._begin_anew())

    def on_fault(self, error: Exception) -> None:
        """One of these failed."""
        self._services.failed(self._name, error)

    async def _begin_anew(self) -> None:
        if self._wish or not self.begin():
            await self.run()

    # ---------------------------------------------------------------- while it runs

    def _settle(self) -> None:
        """It lives for a moment: that is told, and its output is watched from now on."""
        if self._record is None:
            self._output.start()
            if self._memory is not None:
                self._memory.start()
            if not self._began:
                self._began = True
                self._services.report(link.Began(attempt=self._name))

    def _grew(self) -> None:
        events = [] if self._began else [link.Began(attempt=self._name)]
        self._began = True
        self._services.emit(*events, link.SpoolGrew(attempt=self._name, end=self._spool.end))

    def _later(self, delay_s: float, call: Callable[[], None]) -> None:
        self._timers.append(asyncio.get_running_loop().call_later(delay_s, call))

    def _quiet(self) -> None:
        """No timer and no watch any more."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self._output.stop()
        if self._memory is not None:
            self._memory.stop()

    # ---------------------------------------------------------------- the end

    def _finish(self) -> None:
        """Its processes have ended: what is left of its output, then what goes back, then the end."""
        if self._finished:
            if self._over and self._gone:
                self._services.report(link.Gone(attempt=self._name))
            return
        if self._record is None:
            return
        self._finished = True
        self._quiet()
        self._spool.look(last=True)
        failed = self._record.code != 0 or bool(self._wish)
        outcome = from_exit(
            self._record,
            self._spool.tail() if failed and self._spool.end else "",
            wish=self._wish,
            problem=self._wish_problem,
            forced=self._forced,
            ram_bytes=self._services.ram_bytes,
        )
        if self._memory is not None:
            outcome = replace(outcome, peak_device_bytes=self._memory.peak_bytes)
        reach("agent.exit-read")
        if self._results is None:
            self._end(outcome)
        else:
            self._services.go_on(self._name, self._send_back(self._results, outcome))

    async def _send_back(self, results: Results, outcome: Outcome) -> None:
        """Files go back before the end is told, whatever the end."""
        if self._spool.end:
            self._services.emit(link.SpoolGrew(attempt=self._name, end=self._spool.end))
        self._end(await results.deliver(results.settled(outcome), {}, self.workspace))

    def _end(self, outcome: Outcome) -> None:
        if self._over:
            return
        self._over = True
        self.ended.set()
        ran = self._record is not None
        self._services.report(
            link.Ended(
                attempt=self._name,
                end=self._spool.end,
                outcome=outcome,
                began=ran,
                gone=self._gone or not ran,
            )
        )

    def _tell(self, text: str) -> None:
        self._services.emit(link.Doing(attempt=self._name, text=text))
