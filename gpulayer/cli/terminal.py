"""What stands on the terminal: a program's own bytes, and beside them our lines, on stderr."""

from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

from gpulayer.client.transfer import HowFar
from gpulayer.tables import cut
from gpulayer.words import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_COLOURS = {"✓": "green", "✗": "red", "●": "blue", "◐": "cyan", "○": "dim", "□": "yellow", "◌": "yellow", "↻": "yellow"}
_WIDTH = 72  # of a line with something at its right end
_GAP = 3


def console_of(stream: TextIO) -> Console:
    """A console of rich's: colours where a terminal takes them and NO_COLOR does not forbid it."""
    from rich.console import Console

    class Ours(Console):
        def on_broken_pipe(self) -> None:
            """Nobody reads it any more: whoever prints decides what that means."""
            raise BrokenPipeError

    return Ours(file=stream, highlight=False, markup=False, emoji=False, soft_wrap=True)


def coloured(line: str) -> Text:
    """A line whose sign of a state, its first letter but for blanks, has the state's colour.

    What others wrote, such as a job's name, gives the terminal no commands.
    """
    from rich.text import Text

    line = visible(line)
    text, at = Text(line), len(line) - len(line.lstrip())
    colour = _COLOURS.get(line[at : at + 1])
    if colour:
        text.stylize(colour, at, at + 1)
    return text


class Terminal:
    """Our lines, one of which may be updated in place. As a context manager it leaves nothing half-written.

    On what is no terminal, a line that would be updated is written once for each thing that it says.
    """

    def __init__(self, *, quiet: bool = False, out: BinaryIO | None = None, err: TextIO | None = None):
        """`quiet`: none of our lines. `out` and `err`: where the program's streams go, by default this process's."""
        self._quiet = quiet
        self._err = err or sys.stderr
        self._out = out or getattr(sys.stdout, "buffer", None)
        self._console: Console | None = None
        self._live = self._err.isatty() and os.environ.get("TERM") != "dumb"
        self._both = _same_place(self._out, self._err)  # the program's stdout stands between our lines
        self._shown = ""  # the line that is updated in place
        self._last = ""
        self._mid_line = False  # what the program wrote last where our lines go was no whole line
        self._progress: Any = None
        self._task: Any = None

    @property
    def console(self) -> Console:
        """Of stderr."""
        if self._console is None:
            self._console = console_of(self._err)
        return self._console

    @property
    def asks(self) -> bool:
        """Whether somebody sits there who can be asked."""
        return self._live and sys.stdin is not None and sys.stdin.isatty()

    # ---------------------------------------------------------------- ours

    def say(self, left: str, right: str = "") -> None:
        """A line that stays. Its first letter, a state's sign, has the state's colour."""
        self.clear()
        if not self._quiet:
            self._fresh_line()
            self._print(_spread(visible(left), right, min(_WIDTH, self.console.width - 1)))

    def warn(self, text: str) -> None:
        """What a person has to know, also with `quiet`."""
        self.clear()
        self._fresh_line()
        self._print(text)

    def status(self, line: str) -> None:
        """A line that holds until the next one."""
        if self._quiet:
            return
        if isinstance(line, HowFar):
            self._show_progress(line)
            return
        if line == self._last:
            return
        self._end_progress()
        self._last = line
        if not self._live:
            self._print(line)
            return
        self._fresh_line()
        text = cut(visible(line), self.console.width - 1)
        self._err.write("\r\x1b[2K")
        self._print(text, end="")
        self._shown = text

    def hint(self, line: str) -> None:
        """A line for who sits there and waits: elsewhere it is left out."""
        if self._live:
            self.status(line)

    def clear(self) -> None:
        """Take the line away that is updated in place."""
        self._end_progress()
        if self._shown:
            self._err.write("\r\x1b[2K")
            self._err.flush()
        self._shown = self._last = ""

    def ask(self, question: str) -> str:
        """What a person answers; '' for Enter alone, 'n' for the end of the file. Interrupts are the caller's."""
        self.clear()
        self._fresh_line()
        self._err.write(question)
        self._err.flush()
        answer = sys.stdin.readline()
        return answer.strip().lower() if answer else "n"

    def _print(self, line: str, end: str = "\n") -> None:
        self.console.print(coloured(line), end=end)
        self._err.flush()

    def _fresh_line(self) -> None:
        if self._mid_line:
            self._err.write("\n")
            self._mid_line = False

    # ---------------------------------------------------------------- bars

    def _show_progress(self, far: HowFar) -> None:
        if not self._live:
            if self._last != far.what:
                self._last = far.what
                self._print(far.what)
            return
        if self._progress is None:
            self.clear()
            self._progress = _bars(self.console)
            self._task = self._progress.add_task(far.what, total=far.total_bytes)
            self._progress.start()
        self._progress.update(
            self._task, description=far.what, completed=min(far.passed_bytes, far.total_bytes), total=far.total_bytes
        )

    def _end_progress(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    # ---------------------------------------------------------------- the program's

    def write(self, stream: str, data: bytes) -> None:
        """What the program wrote, as it is. Raises BrokenPipeError where nobody reads it."""
        if self._shown or self._progress is not None:
            self.clear()
        if stream == "stderr":
            self._err.flush()
            target = getattr(self._err, "buffer", None)
        else:
            target = self._out
        if target is None:
            raise OSError(f"there is no {stream}")
        target.write(data)
        target.flush()
        if data and (self._both or stream == "stderr"):
            self._mid_line = not data.endswith(b"\n")

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()
        if self._live:  # elsewhere the program's bytes stay as they were
            self._fresh_line()


def _same_place(out: BinaryIO | None, err: TextIO) -> bool:
    """Whether two streams end in the same terminal, pipe or file."""
    try:
        return out is not None and os.path.sameopenfile(out.fileno(), err.fileno())
    except (OSError, ValueError):  # one is closed, or in memory
        return False


def _spread(left: str, right: str, width: int) -> str:
    if not right:
        return left
    from gpulayer.tables import letters

    return f"{left}{' ' * max(_GAP, width - letters(left) - letters(right))}{right}"


def _bars(console: Console) -> Any:
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    return Progress(*columns, TimeRemainingColumn(), console=console, transient=True)
