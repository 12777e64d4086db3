"""The keeper itself: lock, socket, signals, children, and the order in which it all ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket

from gpulayer_worker.keeper.agent import REFUSED, Agent
from gpulayer_worker.keeper.containment import VARIABLE, ContainmentError, decide
from gpulayer_worker.keeper.context import Context, say
from gpulayer_worker.keeper.eventloop import READ, Loop
from gpulayer_worker.keeper.groups import Groups
from gpulayer_worker.keeper.posixspawn import keep_from_programs
from gpulayer_worker.keeper.records import Folder, last_line, remove, write_json
from gpulayer_worker.keeper.requests import Requests
from gpulayer_worker.keeper.server import Server, make_run_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpulayer_worker.keeper.containment import Containment

EXIT_FAILED = 1
EXIT_HELD = 3

AGENT_GRACE_S = 10.0
GROUPS_GRACE_S = 10.0


class HeldError(Exception):
    """Another keeper holds the folder."""


def run_keeper(
    data: str | os.PathLike[str],
    agent_argv: list[str],
    *,
    portable: bool,
    agent_env: Mapping[str, str] | None,
    containment: str | None,
    on_ready: Callable[[], None] | None,
) -> int:
    """Be the keeper (see `gpulayer_worker.keeper.run`)."""
    _ensure_stdio()
    keep_from_programs()
    folder = Folder(os.fspath(data))
    loop = Loop()
    lock = None
    try:
        folder.prepare()
        lock = take_lock(folder)
        context = Context(loop=loop, folder=folder, portable=portable)
        decided = decide(wanted=containment or os.environ.get(VARIABLE) or None, portable=portable)
        keeper = Keeper(context, decided, agent_argv, os.environ if agent_env is None else agent_env)
        return keeper.run(on_ready)
    except HeldError as error:
        say(str(error))
        return EXIT_HELD
    except (OSError, ContainmentError) as error:
        say(f"the keeper of {folder.root} stops: {error}")
        return EXIT_FAILED
    finally:
        loop.close()
        if lock is not None:
            os.close(lock)


def take_lock(folder: Folder) -> int:
    """Hold the folder until the returned descriptor is closed. Raises HeldError, saying who holds it."""
    fd = os.open(folder.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.read(fd, 32).decode("ascii", "replace").strip() or "unknown"
        os.close(fd)
        raise HeldError(f"process {pid} is the keeper of {folder.root} already: stop it first, or give another --data")
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def _ensure_stdio() -> None:
    """Make sure that 0, 1 and 2 are open, so that no file or pipe of ours gets one of these numbers."""
    while True:
        fd = os.open(os.devnull, os.O_RDWR)
        if fd > 2:
            os.close(fd)
            return


class Keeper:
    """Ties the parts together. It ends by SIGTERM or SIGINT, or when the agent ended with 0 or 77; by nothing else."""

    def __init__(
        self, context: Context, containment: Containment, agent_argv: list[str], agent_env: Mapping[str, str]
    ) -> None:
        self._context = context
        self._containment = containment
        self._server: Server | None = None
        self._code = 0
        self._stopping = False
        self._signals: set[int] = set()
        self._groups = Groups(context, containment, self._emit)
        self._agent = Agent(context, agent_argv, agent_env, self._agent_ended)
        self._agent.before_start = self._before_agent
        self._requests = Requests(self._groups, self._agent, containment.kind)

    def run(self, on_ready: Callable[[], None] | None) -> int:
        """Serve until told to stop; returns the exit code."""
        wake, woken = socket.socketpair()
        wake.setblocking(False)
        woken.setblocking(False)
        loop = self._context.loop
        loop.add(woken.fileno(), READ, lambda: self._woken(woken))
        loop.after_batch = self._after_batch
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: self._signals.add(number))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT))
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a closed terminal stops no job
        try:
            self._groups.adopt()
            self._listen()
            adopted = self._agent.adopt()
            if on_ready is not None:
                on_ready()
            if not adopted:
                loop.call_later(0, self._agent.start)
            code = loop.run()
            # only now: after a failure groups live on, with their sockets in the run folder, for the next keeper
            self._close()
            return code
        finally:
            signal.set_wakeup_fd(-1)
            wake.close()
            woken.close()

    def _after_batch(self) -> None:
        """First what is so is written down, then it is told."""
        self._groups.settle()
        if self._server is not None:
            self._server.flush()

    def _listen(self) -> None:
        folder = self._context.folder
        self._server = Server(self._context, make_run_folder(folder.keeper), self._requests.handle)
        process = self._context.table.one(os.getpid())
        write_json(
            folder.keeper,
            {
                "pid": os.getpid(),
                "start_time": process.start_time if process is not None else 0,
                "boot_id": self._context.boot_id,
                "socket": self._server.path,
                "run_dir": self._server.run_folder,
                "containment": self._containment.kind,
            },
        )

    def _close(self) -> None:
        if self._server is not None:
            self._server.close()
            remove(self._context.folder.keeper)
        self._groups.close()

    def _emit(self, event: dict[str, object]) -> None:
        if self._server is not None:
            self._server.emit(event)

    def _before_agent(self) -> None:
        """The agent is about to start: it must find the socket, even if somebody has cleaned /tmp."""
        if self._server is not None:
            if os.path.exists(self._server.path):
                return
            self._context.log(f"{self._server.path} has been removed: listening anew")
            self._server.close()
            self._server = None
        try:
            self._listen()
        except OSError as error:  # the agent will not find us, end, and be started again: then we try again
            self._context.log(f"cannot listen: {error}")

    def _woken(self, woken: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            while woken.recv(4096):
                pass
        numbers, self._signals = self._signals, set()
        if signal.SIGCHLD in numbers:
            self._reap()
        if numbers - {signal.SIGCHLD}:
            self._stop()

    def _reap(self) -> None:
        """Fetch the status of every child that has ended, an orphan's too."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if not self._groups.reaped(pid, status, usage):
                self._agent.reaped(pid, status)
        self._groups.sweeper.poke()

    def _stop(self) -> None:
        """SIGTERM or SIGINT: first the agent, then the groups. A second signal waits for the agent no longer."""
        if self._stopping:
            self._agent.kill()
            return
        self._stopping = True
        self._context.loop.call_later(AGENT_GRACE_S, self._agent.kill)
        self._agent.stop()

    def _agent_ended(self, code: int | None) -> None:
        """The agent ended for good."""
        self._stopping = True
        if code == REFUSED:
            self._code = EXIT_FAILED
            why = last_line(self._context.folder.agent_log).rpartition(" gpulayer.worker: ")[2]
            say(f"the agent gave up: {why or 'it did not say why'}")
        self._context.loop.call_later(GROUPS_GRACE_S, self._give_up)
        self._groups.kill_all(lambda: self._context.loop.stop(self._code))

    def _give_up(self) -> None:
        left = [row["id"] for row in self._groups.rows() if not row["gone"]]
        self._context.log(f"processes of {', '.join(left)} can't be killed: they are left")
        self._context.loop.stop(self._code or EXIT_FAILED)
