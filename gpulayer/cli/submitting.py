"""What `gpulayer submit` does: send, wait, show, fetch."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpulayer.cli import common
from gpulayer.cli.common import plain, print_json
from gpulayer.cli.errors import UsageError
from gpulayer.cli.interrupts import Interrupts
from gpulayer.cli.terminal import Terminal
from gpulayer.cli.watch import Detached, OutputClosed, Watch, ended_line, output_hint, why_rejected
from gpulayer.client.client import Client
from gpulayer.client.command import Command
from gpulayer.client.ending import exit_code
from gpulayer.client.errors import GpulayerError
from gpulayer.client.files import Came, Home
from gpulayer.client.sending import Sent
from gpulayer.protocol.types import JobView, State
from gpulayer.source import Bundle, Manifest
from gpulayer.source.leftout import why_missing
from gpulayer.words import duration, size

if TYPE_CHECKING:
    import signal

_PIPE = 141  # 128 + SIGPIPE
_INTERRUPTED = 130


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What a person wants of us, besides the command."""

    to: str | None = None
    download: bool = True
    detach: bool = False
    quiet: bool = False
    json: bool = False


def run(command: Command, wishes: Wishes) -> int:
    """Submit, and unless it is detached stay until its end. The exit code."""
    if wishes.to is not None and not _may_be_folder(Path(wishes.to).expanduser()):
        raise UsageError(f"--to {wishes.to}: this is no folder, and files can't come into it")
    out = sys.stderr.buffer if wishes.json else None  # stdout is for the object alone
    with Interrupts() as interrupts, Terminal(quiet=wishes.quiet, out=out) as terminal, common.open_client() as client:
        return _Run(command, wishes, interrupts, terminal, client).run()


def _may_be_folder(path: Path) -> bool:
    return path.is_dir() or not path.exists()


class _Run:
    """One command on its way."""

    def __init__(
        self, command: Command, wishes: Wishes, interrupts: Interrupts, terminal: Terminal, client: Client
    ) -> None:
        self._command = command
        self._wishes = wishes
        self._interrupts = interrupts
        self._terminal = terminal
        self._client = client
        self._bundle: Bundle | None = None
        self._sent_at_ns = time.time_ns()

    def run(self) -> int:
        job = self._submit()
        if self._wishes.detach:
            return self._detached(job)
        self._interrupts.arm()
        watch = Watch(self._client, self._terminal, self._interrupts, job)
        try:
            view = watch.run()
        except Detached as left:
            self._terminal.warn(f"gpulayer: {left}")
            return _INTERRUPTED
        except OutputClosed:
            goes_on = f"job {job.id} goes on: gpulayer job logs -f {job.id}"
            self._terminal.warn(f"gpulayer: nobody reads standard output any more; {goes_on}")
            return _PIPE
        return self._ended(view, watch.stopped_by)

    def _submit(self) -> JobView:
        began = time.monotonic()
        travels = self._command.source is not None or bool(self._command.inputs)
        self._terminal.hint(f"◐ looking {'through the files' if travels else 'for a control plane'}")
        try:
            answer = self._client.submit_command(self._command, self._terminal.status, self._interrupts.held)
        except (KeyboardInterrupt, SystemExit):
            if self._interrupts.pending is not None:  # a second one: the answer did not come
                self._terminal.warn("gpulayer: whether the job was submitted is not known: gpulayer job list shows it")
            raise
        job, self._bundle, sent = answer
        self._terminal.clear()
        if self._bundle is not None:
            what = "source" if self._command.source is not None else "inputs"
            took = duration(time.monotonic() - began)
            self._terminal.say(f"✓ {what:<8} {_travelled(self._bundle, sent)}", took)
        return job

    def _detached(self, job: JobView) -> int:
        if self._wishes.json:
            print_json(plain(job))
        else:
            sys.stdout.write(f"{job.id}\n")
        if job.state is State.REJECTED:
            self._refused(job)
        pending = self._interrupts.take()
        if pending is not None:
            sys.stdout.flush()
            return 128 + pending
        return exit_code(job) if job.terminal else 0

    # ---------------------------------------------------------------- the end

    def _ended(self, view: JobView, stopped_by: signal.Signals | None) -> int:
        self._interrupts.disarm()  # from here on an interrupt ends the fetching
        line = ended_line(view)
        self._terminal.say(line)
        if output_hint(view):
            self._terminal.say(output_hint(view))
        if view.state is State.REJECTED:
            self._say_why(view)
        elif self._wishes.quiet and view.outcome is not None and view.outcome.problem:
            self._terminal.warn(f"gpulayer: {line}")
        self._explain(view)
        code = exit_code(view)
        if stopped_by is not None and view.state is State.CANCELLED:
            code = 128 + stopped_by
        came, fetched = self._fetch(view)
        if self._wishes.json:
            files = [path for path, _ in came.written] + [new for _, new in came.beside] if came is not None else []
            print_json({**plain(view), "exit_code": code, "downloaded": files})
        return code or (0 if fetched else 1)

    def _refused(self, job: JobView) -> None:
        """Nobody waits for its end, which came at once."""
        sys.stdout.flush()
        self._terminal.say(ended_line(job))
        self._say_why(job)

    def _say_why(self, rejected: JobView) -> None:
        for why in why_rejected(rejected):
            self._terminal.warn(why)

    def _explain(self, view: JobView) -> None:
        """Say of a failure what is known here of its cause: a file that did not travel."""
        if view.state is State.FAILED and view.outcome is not None and self._bundle is not None:
            missing = why_missing(self._bundle, view.outcome.tail)
            if missing:
                self._terminal.warn(f"gpulayer: {missing}")

    def _fetch(self, view: JobView) -> tuple[Came | None, bool]:
        """What came, and whether nothing went wrong with it."""
        if not (self._wishes.download and self._command.outputs) or view.attempt is None:
            return None, True
        try:
            came = self._client.download_to(view, self._home(), self._terminal.status)
        except GpulayerError as error:
            self._terminal.warn(f"gpulayer: {error}")
            return None, False
        except (KeyboardInterrupt, SystemExit):
            self._terminal.warn(f"gpulayer: its files were not fetched: gpulayer job download {view.id} does that")
            raise
        for line in came.lines():
            self._terminal.say(f"✓ {line}")
        for line in came.warnings():
            self._terminal.warn(f"gpulayer: {line}")
        return came, not came.refused

    def _home(self) -> Home:
        """Where the files go, and what of it was sent."""
        source, bundle = self._command.source_folder(), self._bundle
        globs = tuple(self._command.outputs)
        if self._wishes.to is None and source is not None and bundle is not None:
            return Home(root=bundle.root, sent=bundle.manifest, sent_at_ns=self._sent_at_ns, globs=globs)
        root = Path(self._wishes.to or ".").expanduser().absolute()
        return Home(root=root, sent=Manifest(()), sent_at_ns=self._sent_at_ns, globs=globs)


def _travelled(bundle: Bundle, sent: Sent | None) -> str:
    count = len(bundle.manifest.files)
    files = f"{count} file" if count == 1 else f"{count} files"
    if sent is None or not sent.changed:
        return f"{files}, nothing changed"
    return f"{files}, {sent.changed} changed, {size(sent.sent_bytes)} sent"
