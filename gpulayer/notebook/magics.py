"""`%%gpulayer` and `%gpulayer`."""

from __future__ import annotations

import shlex
import sys
import time
from typing import Any

from IPython.core.magic import Magics, line_cell_magic, magics_class

from gpulayer.client.api import Api
from gpulayer.client.connection import Connection
from gpulayer.client.embedded import find_or_start
from gpulayer.client.errors import ControlPlaneError
from gpulayer.client.job import Job
from gpulayer.notebook.cellrun import CellRunner
from gpulayer.notebook.folder import Source
from gpulayer.notebook.options import HelpWanted, UsageError, cell_parser, parse_cell_line, parse_size
from gpulayer.notebook.status import StatusLine
from gpulayer.notebook.stop import Stop
from gpulayer.notebook.words import duration, size, status_line
from gpulayer.protocol.types import JobView, WorkerView

_READY_S = 60.0


@magics_class
class GpulayerMagics(Magics):
    """The magics of one IPython shell, over one connection."""

    def __init__(self, shell: Any):
        super().__init__(shell)
        self._runner: CellRunner | None = None

    @line_cell_magic
    def gpulayer(self, line: str, cell: str | None = None) -> object:
        """Run a cell on a worker; as a line, look at and steer what runs. `-h` shows the options."""
        try:
            return self._line(line) if cell is None else self._cell(line, cell)
        except HelpWanted as wanted:
            sys.stdout.write(str(wanted))
            return None

    def close(self) -> None:
        """Leave the control plane; jobs go on."""
        if self._runner is not None:
            self._runner.connection.close()

    # ---------------------------------------------------------------- a cell

    def _cell(self, line: str, cell: str) -> object:
        options = parse_cell_line(line)
        runner = self._ensure_runner()
        status = StatusLine(self.shell)
        with Stop() as stop:
            subscription = runner.submit(self.shell, line, cell, options, status, stop)
            if not options.detach or stop.wanted:
                runner.follow(self.shell, subscription, status, options.max_output_bytes, stop, cancels=True)
                return None
        runner.connection.unfollow(subscription)
        return Job(subscription.job, lambda name: self._api().job(name))

    def _ensure_runner(self) -> CellRunner:
        if self._runner is None:
            self._runner = CellRunner(Connection(find_or_start), Source())
        return self._runner

    def _api(self) -> Api:
        connection = self._ensure_runner().connection
        if not connection.wait_ready(_READY_S) or connection.endpoint is None:
            raise ControlPlaneError(f"the control plane does not answer: {connection.away or 'no word from it'}")
        return Api(connection.endpoint)

    # ---------------------------------------------------------------- a line

    def _line(self, line: str) -> object:
        try:
            words = shlex.split(line)
        except ValueError as error:
            raise UsageError(f"the line can't be read: {error}") from error
        if not words or words[0] in ("-h", "--help", "help"):
            raise HelpWanted(cell_parser().format_help())
        commands = {"status": self._status, "attach": self._attach, "cancel": self._cancel}
        command = commands.get(words[0])
        if command is None:
            raise UsageError(f"unknown command {words[0]!r}: one of {', '.join(commands)} (%gpulayer -h)")
        command(words[1:])
        return None

    def _status(self, words: list[str]) -> None:
        if words:
            raise UsageError(f"%gpulayer status takes nothing more, got {' '.join(words)!r}")
        api = self._api()
        lines = ["machines"]
        lines += [f"  {_machine(worker)}" for worker in api.workers()] or ["  none yet: a cell starts this one"]
        now = time.time()
        jobs = api.jobs(limit=10)
        lines += ["jobs"] + ([f"  {_job(job, now)}" for job in jobs] or ["  none yet"])
        sessions = api.sessions()
        if sessions:
            lines.append("sessions")
        for session in sessions:
            doing = f"running {session.running}" if session.running else "idle"
            if session.idle_since is not None:
                doing += f" for {duration(max(0.0, now - session.idle_since))}"
            lines.append(f"  {session.name}  on {session.worker} · {doing}")
        sys.stdout.write("\n".join(lines) + "\n")

    def _attach(self, words: list[str]) -> None:
        max_output_bytes = 1_000_000
        if len(words) == 3 and words[1] == "--max-output":
            max_output_bytes = _size(words[2])
        elif len(words) != 1:
            raise UsageError("%gpulayer attach JOB [--max-output SIZE]")
        runner = self._ensure_runner()
        self._api().job(words[0])  # a wrong name is told before anything else
        subscription = runner.connection.follow(words[0])
        status = StatusLine(self.shell)
        try:
            with Stop() as stop:
                stop.arm()
                stop.watch(subscription)
                runner.follow(self.shell, subscription, status, max_output_bytes, stop, cancels=False)
        except KeyboardInterrupt:
            sys.stdout.write(f"\ndetached; job {words[0]} goes on\n")

    def _cancel(self, words: list[str]) -> None:
        if len(words) != 1:
            raise UsageError("%gpulayer cancel JOB")
        sys.stdout.write(status_line(self._api().cancel(words[0]), time.time()) + "\n")


def _size(text: str) -> int:
    import argparse

    try:
        return parse_size(text)
    except argparse.ArgumentTypeError as error:
        raise UsageError(str(error)) from error


def _machine(worker: WorkerView) -> str:
    inventory = worker.inventory
    devices = ", ".join(f"{d.kind}:{d.index} {d.name}".rstrip() for d in inventory.devices) or "no accelerator"
    where = "online" if worker.connected else "out of reach"
    local = " (this machine)" if worker.local else ""
    free = f"{worker.slots_free} of {worker.slots} slots free"
    notes = "".join(f" · {note}" for note in (*inventory.problems, *worker.notes))
    ram = size(inventory.ram_bytes)
    return f"{worker.name}{local}  {where} · {free} · {devices} · {inventory.cpu_cores} cores, {ram}{notes}"


def _job(job: JobView, now: float) -> str:
    return f"{status_line(job, now)} · {job.name}" if job.name else status_line(job, now)
