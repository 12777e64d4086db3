"""One job in the terminal, from its wait to its end."""

from __future__ import annotations

import signal
import threading
import time
from dataclasses import dataclass

from gpulayer.cli import common
from gpulayer.cli.interrupts import AskedAgain, Interrupts
from gpulayer.cli.terminal import Terminal
from gpulayer.client import asks
from gpulayer.client.client import Client
from gpulayer.client.errors import NobodyAnswers
from gpulayer.client.following import LOOK_S, Following
from gpulayer.client.remote import Unreachable
from gpulayer.explaining import why_table
from gpulayer.protocol.types import JobView, State
from gpulayer.words import device_name, is_warm, overall_line, progress_of, status_line

_HELD_BYTES = 256 * 1024
_ARRAY_LOOK_S = 1.0
_ABSENT = (State.UNREACHABLE, State.LOST)


class Detached(Exception):
    """A person left; the job goes on, or is being cancelled."""


class OutputClosed(Exception):
    """Nobody reads the program's output any more."""


@dataclass(kw_only=True)
class _Seen:
    """What people were told so far."""

    place: str = ""  # where it runs
    absent: State | None = None
    away: bool = False  # the control plane is


class Watch:
    """Follows a job: its output to the terminal, its states as lines, interrupts to it."""

    def __init__(self, client: Client, terminal: Terminal, interrupts: Interrupts, job: JobView):
        self._client = client
        self._terminal = terminal
        self._interrupts = interrupts
        self.view = job
        self.stopped_by: signal.Signals | None = None
        self._seen = _Seen()
        self._held: list[tuple[str, bytes]] = []  # output that came before it was said where it runs

    def run(self) -> JobView:
        """The job once it has ended. Raises `Detached`, `OutputClosed`."""
        if self.view.terminal and self.view.attempt is None:
            return self.view
        if self.view.tasks:
            self._watch_array()
        else:
            self._follow()
        return self.view

    def _follow(self) -> None:
        self._show()
        with Following(self._client.connection, self.view.id) as following:
            self._interrupts.wake = following.subscription.wake
            while following.view is None or not following.view.terminal:
                self._act()
                news = following.take(LOOK_S)
                for each in news:
                    if isinstance(each, JobView):
                        self.view = each
                        self._show()
                    else:
                        self._write(*each)
                if not news:
                    self._look_at_the_control_plane()
            self._release()
            if following.truncated:
                self._terminal.warn(f"◌ the end of its output was lost with {self.view.worker}")

    def _watch_array(self) -> None:
        """Its tasks run side by side: their output is in their logs."""
        woken = threading.Event()
        self._interrupts.wake = woken.set
        while not self.view.terminal:
            woken.clear()
            self._act()
            self._terminal.status(overall_line(self.view, time.time(), f"gpulayer job show {self.view.id}"))
            try:
                self.view = self._client.api.ask(asks.job(self.view.id, wait_s=_ARRAY_LOOK_S), patience_s=0.0)
                self._say_away(away=False)
            except (NobodyAnswers, Unreachable):
                self._say_away(away=True)
                woken.wait(_ARRAY_LOOK_S)

    # ---------------------------------------------------------------- what is told

    def _show(self) -> None:
        view = self.view
        if view.cancelling and not view.terminal:
            self._release()
            self._terminal.status(status_line(view, time.time(), more=f"gpulayer job show {view.id}"))
        elif view.state in (State.QUEUED, State.ASSIGNED):
            self._terminal.status(status_line(view, time.time(), more=f"gpulayer job show {view.id}"))
        elif view.state in _ABSENT:
            if self._seen.absent is not view.state:
                self._terminal.say(status_line(view, time.time()))
        elif view.worker:
            self._show_place()
        self._seen.absent = view.state if view.state in _ABSENT else None

    def _show_place(self) -> None:
        view = self.view
        more = f" and {len(view.devices) - 1} more" if len(view.devices) > 1 else ""
        device = f" · {device_name(view.devices[0])}{more}" if view.devices else ""
        place = f"● {view.worker}{device}"
        again = f" · attempt {view.attempts}" if view.attempts > 1 else ""
        if place + again != self._seen.place:
            self._seen.place = place + again
            self._terminal.say(place + again, f"job {view.id}")
        self._release()

    def _look_at_the_control_plane(self) -> None:
        connection = self._client.connection
        self._say_away(away=bool(connection.away) and not connection.wait_ready(0))

    def _say_away(self, *, away: bool) -> None:
        if away and not self._seen.away:
            self._terminal.say(f"◌ control plane out of reach, the job goes on · job {self.view.id}")
        elif self._seen.away and not away:
            self._terminal.say(f"● control plane is back · job {self.view.id}")
        self._seen.away = away

    # ---------------------------------------------------------------- its output

    def _write(self, stream: str, data: bytes) -> None:
        """After the line that says where it runs, which may come a moment later."""
        self._held.append((stream, data))
        if self._seen.place or sum(len(data) for _, data in self._held) > _HELD_BYTES:
            self._release()

    def _release(self) -> None:
        held, self._held = self._held, []
        try:
            for stream, data in held:
                self._terminal.write(stream, data)
        except BrokenPipeError as error:
            raise OutputClosed from error

    # ---------------------------------------------------------------- interrupts

    def _act(self) -> None:
        number = self._interrupts.take()
        if number is None:
            return
        if self.stopped_by is not None:
            raise Detached(f"job {self.view.id} is being cancelled; gpulayer job wait {self.view.id} waits for its end")
        if number == signal.SIGINT and self._terminal.asks:
            answer = self._asked()
            if answer == "n":
                return
            if answer == "d":
                raise Detached(f"job {self.view.id} goes on: gpulayer job logs -f {self.view.id}")
        self.stopped_by = number
        try:
            with self._interrupts.disarmed():
                self.view = self._client.cancel(self.view.id)
        except (KeyboardInterrupt, SystemExit):
            raise Detached(f"the control plane did not answer: gpulayer job cancel {self.view.id} asks again") from None
        self._show()

    def _asked(self) -> str:
        """'y', 'n' or 'd'; asking once more, by Ctrl-C, means yes."""
        answers = {"": "y", "y": "y", "yes": "y", "n": "n", "no": "n", "d": "d", "detach": "d"}
        self._interrupts.asking = True
        try:
            while True:
                answer = self._terminal.ask("  stop it there too? [Y/n/detach] ")
                if answer in answers:
                    return answers[answer]
        except AskedAgain:
            self._interrupts.take()
            self._terminal.warn("")
            return "y"
        finally:
            self._interrupts.asking = False


def ended_line(view: JobView) -> str:
    """How a job ended, in one line."""
    if not view.tasks or view.state is State.REJECTED:
        return status_line(view, time.time(), more=f"gpulayer job show {view.id}")
    well = view.state is State.SUCCEEDED or is_warm(view)
    more = "" if well else f" · gpulayer job show {view.id} names them"
    return f"{progress_of(view, time.time())} · job {view.id}{more}"


def output_hint(view: JobView) -> str:
    """Where the output is of a job whose tasks ran side by side; '' for others, whose output was shown."""
    if not view.tasks or view.state is State.REJECTED:
        return ""
    return f"  output: gpulayer job logs {view.id} --index N"


def why_rejected(view: JobView) -> list[str]:
    """The machines, why each could not, and what would help."""
    return why_table(view, common.width())
