"""Running one cell: files, a kernel, the wait for its end, and nothing left after it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from msgspec.structs import replace

from gpulayer.protocol.failpoints import reach
from gpulayer.protocol.messages import Assign
from gpulayer.protocol.types import Outcome, State
from gpulayer.source import SourceError
from gpulayer.source.blobs import Span
from gpulayer_worker import link
from gpulayer_worker.keeper.client import KeeperError
from gpulayer_worker.kernels import Kernel, KernelError
from gpulayer_worker.run.devicememory import DeviceMemory, measuring
from gpulayer_worker.run.fetching import fetched
from gpulayer_worker.run.outcome import from_death, from_reply, timed_out
from gpulayer_worker.run.request import cell_of, metadata
from gpulayer_worker.run.results import Results
from gpulayer_worker.run.services import GiveBack, Over, Services
from gpulayer_worker.run.spoolwatch import CellSpool

T = TypeVar("T")

_PREAMBLE = 2  # records that every cell begins with: the status busy, and its own code
_PREAMBLE_S = 0.01  # so long a cell's begin waits for its output
_OUTPUT_S = 0.001  # so long its first output waits for its end


class CellRun:
    """One attempt of a cell. `resume` takes up one that an agent before us began."""

    def __init__(self, services: Services, assign: Assign, *, resumed: bool = False):
        self._services = services
        self._assign = assign
        self._resumed = resumed  # an agent before us began it: it may have noted a kernel
        self._name = assign.attempt
        self.session = assign.session
        self.ended = asyncio.Event()  # the record of its end is made
        self._folder = services.layout.attempt(assign.attempt)
        self._spool = CellSpool(services.layout.spool(assign.attempt))
        self.kernel: Kernel | None = None
        self._cell = cell = cell_of(assign)
        goes_back = cell.outputs or cell.output_globs
        self._results = Results(services, cell.output_globs, self._folder, self._tell) if goes_back else None
        self._inputs: Span | None = None  # where the values of --in are
        self._workspace: Path | None = None  # of the cell that a kernel was given
        self._memory: DeviceMemory | None = None
        self._program: Outcome | None = None  # how it ended; what goes back is on its way
        self._news = asyncio.Event()
        self._began = False
        self._ended = False
        self._wish = ""  # 'cancel', 'timeout', 'kill': why its end is wanted
        self._wish_problem = ""
        self._force_at: float | None = None
        self._interrupt_due = False
        self._blocked = False
        self._timer: asyncio.TimerHandle | None = None
        self._hurried = False

    running = False  # nobody waits with a report until a cell ends

    # ---------------------------------------------------------------- wishes

    def interrupt(self, grace_s: float) -> None:
        """Ask the cell to end; by force after `grace_s` seconds. Asked again, nothing changes."""
        if not self._wish:
            self._want("cancel", f"it did not stop within {grace_s:g} s of the interrupt and was ended", grace_s)

    def kill(self, why: str) -> None:
        """End it at once."""
        self._want("kill", why, 0.0)

    def _want(self, wish: str, problem: str, grace_s: float) -> None:
        self._wish, self._wish_problem = wish, problem
        self._interrupt_due = grace_s > 0
        self._force_at = time.monotonic() + grace_s
        if self._results is not None:
            self._results.stop(wish, problem)
        self._news.set()

    # ---------------------------------------------------------------- its spool

    def read(self, offset: int, size: int) -> bytes:
        """Bytes of the spool."""
        return self._spool.reader.read(offset, size)

    def close(self) -> None:
        """Nothing of its spool is wanted any more."""
        self._spool.close()

    def trim(self, offset: int) -> None:
        """What the control plane has may go; not the last records, from which a new agent reads how it ended."""
        if self._spool.reply is None:
            self._spool.reader.release(offset)

    def tell_blocked(self) -> None:
        """Say so while the program waits for space on the disk, and when it no longer does."""
        blocked = self._spool.reader.blocked() if self.kernel is not None and not self._ended else None
        if blocked is not None or self._blocked:
            self._blocked = blocked is not None
            free = (blocked or {}).get("free_bytes", 0) / 1e6
            self._tell(f"output waits: {free:,.0f} MB free on the worker's disk" if self._blocked else "")

    # ---------------------------------------------------------------- the run

    def begin(self) -> bool:
        """Send the cell now, if all that it needs is here; else `run` gets it first. False: `run` is needed.

        Raises OSError.
        """
        self._begin()
        return False

    def _begin(self) -> None:
        session = self._assign.session
        kernel = self._services.sessions.get(session) if session is not None else None
        if session is None or kernel is None or kernel.exit.done() or self._resumed or self._wish:
            return
        cell = self._cell
        if cell.inputs or cell.output_globs:
            return  # what they need is made in threads
        folder = self._services.layout.session(session)
        if self._services.workspaces.is_current(cell.bundle, folder / "files.json"):
            self._give(kernel, folder / "workspace")

    async def run(self) -> None:
        """From the assignment to the last process's end. Every way out says so to the link."""
        try:
            if self.kernel is None:
                await self._prepare()
            await self._until_end()
            if self._program is not None:
                self._end(await self._send_back(self._program))
        except Over as over:
            self._end(over.outcome)
        except OSError as error:
            self._end(Outcome(state=State.FAILED, problem=self._services.layout.trouble(error)))
        except GiveBack as back:
            self._services.emit(link.GaveBack(attempt=self._name, reason=str(back)))
            return
        finally:
            self.ended.set()
            if self._timer is not None:
                self._timer.cancel()
            if self._memory is not None:
                self._memory.stop()
            self._services.watch.remove(self._services.layout.spool(self._name))
        await self._clean_up()
        self._services.emit(link.Gone(attempt=self._name))

    async def _prepare(self) -> None:
        """Files and a kernel, side by side; then send the cell."""
        if self._assign.session in self._services.ended_sessions:
            await self._give_back_after_end(self._assign.session)
        kernel_wanted = asyncio.create_task(self._find_kernel())
        try:
            workspace = await self._files()
            await self._before(workspace)
            kernel = await kernel_wanted
        except (KernelError, KeeperError, SourceError) as error:
            raise Over(Outcome(state=State.FAILED, problem=str(error))) from error
        finally:
            if not kernel_wanted.done():
                kernel_wanted.cancel()
        self.kernel = kernel
        if self._noted_kernel() is None:
            self._check_wish()  # one that a kernel has already may run there: it is interrupted, and watched to its end
        self._give(kernel, workspace)

    def _give(self, kernel: Kernel, workspace: Path) -> None:
        self.kernel, self._workspace = kernel, workspace
        layout = self._services.layout
        reach("agent.kernel-taken")
        # From here on a new agent finds the kernel; it sends the cell again, and a kernel runs an attempt once.
        note: dict[str, Any] = {"kernel": kernel.name, "workspace": str(workspace)}
        if self._inputs is not None:
            note["inputs"] = self._inputs
        layout.note(self._folder, "kernel", note)
        self._services.watch.add(layout.spool(self._name), self._look)
        kernel.exit.add_done_callback(lambda _: self._news.set())
        self._memory = measuring(self._services, self._assign, kernel.name)
        if self._memory is not None:
            self._memory.start()
        reach("agent.before-start")
        if not kernel.exit.done():
            asked = metadata(self._services, self._assign, workspace, self._inputs)
            kernel.execute(self._name, self._cell.code, asked)

    def _noted_kernel(self) -> dict[str, Any] | None:
        """What an agent before us noted of a kernel that has the cell."""
        return self._services.layout.noted(self._folder, "kernel") if self._resumed else None

    async def _find_kernel(self) -> Kernel:
        """The kernel that this attempt has already, its session's, or a fresh one."""
        noted = self._noted_kernel()
        if noted is not None:
            kernel = await self._services.kernels.find(noted["kernel"])
            if kernel is None:
                raise KernelError(f"nothing is left of kernel {noted['kernel']}, which had this cell")
            return kernel
        if self._assign.session is None:
            self._tell("starting a kernel")
            return await self._services.kernels.take(self._name)
        return await self._session_kernel(self._assign.session)

    async def _session_kernel(self, session: str) -> Kernel:
        kernel = self._services.sessions.get(session)
        if kernel is not None and not kernel.exit.done():
            return kernel
        if kernel is not None or session in self._services.ended_sessions:
            await self._give_back_after_end(session)
        folder = self._services.layout.session(session)
        self._tell("starting a kernel")
        kernel = await self._services.kernels.take(session)
        devices = [device.uuid for device in self._assign.devices]
        self._services.layout.note(folder, "session", {"kernel": kernel.name, "devices": devices})
        self._services.session_ready(session, kernel)
        return kernel

    async def _give_back_after_end(self, session: str) -> NoReturn:
        """The session is ending, or has ended: its name opens a new one, once the control plane knows of the end."""
        await self._services.ended_sessions.setdefault(session, asyncio.Event()).wait()
        raise GiveBack(f"session {session} had ended")

    async def _files(self) -> Path:
        """The workspace, made or brought up to date."""
        noted = self._noted_kernel()
        if noted is not None:
            return Path(noted["workspace"])  # the cell may be running in it
        if self._assign.session is not None:
            session = self._services.layout.session(self._assign.session)
            if self._services.workspaces.is_current(self._cell.bundle, session / "files.json"):
                return session / "workspace"
        return await self._fetched(self._make_files)

    async def _fetched(self, fetch: Callable[[Callable[[str], None]], T]) -> T:
        return await fetched(fetch, tell=self._tell, check_wish=self._check_wish, pause=self._pause)

    async def _before(self, workspace: Path) -> None:
        """The values of --in, and how the files are that --output names."""
        noted = self._noted_kernel()
        if noted is not None:  # the cell may be running, and files may have changed
            self._inputs = Span(*noted["inputs"]) if "inputs" in noted else None
            return
        inputs = self._cell.inputs
        if inputs:
            self._inputs = await self._fetched(lambda tell: self._services.workspaces.blob(inputs, tell))
        if self._results is not None:
            await self._results.remember(workspace)

    def _make_files(self, tell: Callable[[str], None]) -> Path:
        """Blocking: runs in a thread."""
        digest = self._cell.bundle
        layout, workspaces = self._services.layout, self._services.workspaces
        if self._assign.session is None:
            target = self._folder / "workspace"
            workspaces.fresh(digest, target, tell)
        else:
            session = layout.session(self._assign.session)
            target = session / "workspace"
            session.mkdir(mode=0o700, parents=True, exist_ok=True)
            workspaces.update(digest, target, session / "files.json", tell)
        return target

    async def _pause(self, seconds: float) -> None:
        """Wait, but not longer than until somebody wants the end."""
        try:
            await asyncio.wait_for(self._news.wait(), seconds)
        except asyncio.TimeoutError:
            return

    def _check_wish(self) -> None:
        if self._wish:
            state = State.CANCELLED if self._wish == "cancel" else State.FAILED
            raise Over(Outcome(state=state, problem="" if self._wish == "cancel" else self._wish_problem))

    # ---------------------------------------------------------------- while it runs

    def _look(self, *, late: bool = False) -> None:
        """The spool may have grown: everything that follows goes out in one frame."""
        if self._ended or self._program is not None or not (self._spool.look() or late):
            return
        events: list[link.Event] = []
        if not self._began:
            if not self._worth_telling(late):
                return
            self._began = True
            events.append(link.Began(attempt=self._name))
            self._limit_time()
        events.append(link.SpoolGrew(attempt=self._name, end=self._spool.end))
        if self._spool.idle and self._spool.reply is not None:
            outcome = self._measured(from_reply(self._spool.reply, wish=self._wish, problem=self._wish_problem))
            if self._spool.reply.get("leaving") and self._assign.session is not None:
                self._services.leave_session(self._assign.session, "a cell called exit()")
            reach("agent.idle-written")
            if self._results is None:
                self._ended = True
                events.append(link.Ended(attempt=self._name, end=self._spool.end, outcome=outcome))
            else:
                self._program = self._results.settled(outcome)
        self._services.emit(*events)
        if self._ended or self._program is not None:
            self._news.set()

    def _worth_telling(self, late: bool) -> bool:
        """Not at once: a small cell's output comes with its begin, and often its end comes with its output."""
        if self._spool.idle or (late and self._spool.began):
            return True
        has_output = self._spool.records > _PREAMBLE
        if self._timer is None or (has_output and not self._hurried):
            if self._timer is not None:
                self._timer.cancel()
            self._hurried = has_output
            wait_s = _OUTPUT_S if has_output else _PREAMBLE_S
            self._timer = asyncio.get_running_loop().call_later(wait_s, lambda: self._look(late=True))
        return False

    def _limit_time(self) -> None:
        """Count the running time from when the kernel was given the cell, also across agents."""
        timeout_s = self._assign.spec.timeout_s
        if timeout_s is not None:
            given_at = (self._folder / "kernel.json").stat().st_mtime
            left_s = max(0.0, timeout_s - (time.time() - given_at))
            asyncio.get_running_loop().call_later(left_s, self._timed_out, timeout_s)

    def _timed_out(self, timeout_s: float) -> None:
        if not self._ended and self._program is None and not self._wish:
            self._want("timeout", timed_out(timeout_s, self._spool.last_line()), 2.0)

    async def _until_end(self) -> None:
        """Wait for the idle record, the kernel's death, or a wish and its grace."""
        kernel = self.kernel
        if kernel is None:
            raise RuntimeError(f"attempt {self._name} runs without a kernel")
        while not self._ended and self._program is None:
            if kernel.exit.done():
                self._look(late=True)
                if not self._ended and self._program is None:
                    record = kernel.exit.result()
                    outcome = self._measured(
                        from_death(
                            record,
                            kernel.tail(),
                            wish=self._wish,
                            problem=self._wish_problem,
                            ram_bytes=self._services.ram_bytes,
                        )
                    )
                    if self._results is None:
                        self._end(outcome)
                    else:
                        self._program = self._results.settled(outcome)
                return
            if self._interrupt_due:
                self._interrupt_due = False
                await self._services.kernels.interrupt(kernel)
            left = None if self._force_at is None else self._force_at - time.monotonic()
            if left is not None and left <= 0:
                self._force_at = None
                await self._services.kernels.kill(kernel)
                continue
            self._news.clear()
            if not kernel.exit.done() and not self._ended and not self._interrupt_due:
                await self._pause_until(left)

    def _measured(self, outcome: Outcome) -> Outcome:
        """With how much device memory it held at its peak."""
        if self._memory is None:
            return outcome
        self._memory.stop()
        return replace(outcome, peak_device_bytes=self._memory.peak_bytes)

    async def _pause_until(self, left_s: float | None) -> None:
        if left_s is None:
            await self._news.wait()
        else:
            await self._pause(left_s)

    async def _send_back(self, outcome: Outcome) -> Outcome:
        """The program has ended: values and files go back before that is told."""
        if self._results is None or self._workspace is None:
            return outcome
        return await self._results.deliver(outcome, self._spool.reply or {}, self._workspace)

    def _end(self, outcome: Outcome) -> None:
        if self._ended:
            return
        self._ended = True
        self._spool.look()
        grew = link.SpoolGrew(attempt=self._name, end=self._spool.end)
        self._services.emit(grew, link.Ended(attempt=self._name, end=self._spool.end, outcome=outcome))

    async def _clean_up(self) -> None:
        """After a fresh cell nothing of it is left; a session's kernel is the session's."""
        if self.kernel is not None and self._assign.session is None:
            await self._services.kernels.end(self.kernel.name)

    # ---------------------------------------------------------------- telling

    def _tell(self, text: str) -> None:
        self._services.emit(link.Doing(attempt=self._name, text=text))
