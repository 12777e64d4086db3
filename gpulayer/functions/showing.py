"""What people see of calls: what these print, why they wait, how far a map is."""

from __future__ import annotations

import codecs
import os
import re
import sys
import time
from collections import deque
from typing import Any

from msgspec.structs import replace

from gpulayer.functions.failures import job_view
from gpulayer.protocol.calls import MapView
from gpulayer.protocol.records import Kind
from gpulayer.protocol.types import Requirements, State
from gpulayer.tables import cut, letters
from gpulayer.words import duration, roughly, status_line, visible

_PATIENCE_S = 0.4  # of what is over before, nobody sees a line
_PLAIN_PATIENCE_S = 3.0  # where lines can't be updated in place
_PLAIN_EVERY_S = 30.0  # so often it is said there how far it is
_EVERY_S = 0.2
_BAR_LETTERS = 16
_KEPT_LETTERS = 1_000_000
_STREAMS = {Kind.CALL_STDOUT: "stdout", Kind.CALL_STDERR: "stderr"}


def shell_of_kernel() -> Any:
    """The IPython shell of a notebook's kernel; None elsewhere."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    return shell if hasattr(shell, "kernel") else None


class Show:
    """Of one call, or one map. Lines of ours stand on stderr of a terminal, or under the cell of a notebook."""

    def __init__(self, name: str, requirements: Requirements, *, single: bool, progress: bool | None):
        """`progress`: whether a map says how far it is; None: where somebody sits there."""
        self._name = name
        self._requirements = requirements
        self._single = single
        self._progress = progress
        self._began_s = time.monotonic()
        self._next_s = self._began_s + _PATIENCE_S
        self._view: MapView | None = None
        self._note = ""
        self._line: _Line | None = None
        self._decoders: dict[tuple[int, int], codecs.IncrementalDecoder] = {}
        self._touched: set[str] = set()
        self._kept: deque[str] = deque()  # of a single call, what it wrote last
        self._kept_letters = 0
        self._ran_s: float | None = None  # when its first call was there
        self._last_s = self._began_s  # when one was done last, and how many were done then
        self._last_done = 0
        self.failed_index: int | None = None  # the call that ended the map
        self.total: int | None = None
        self.done = 0

    # ---------------------------------------------------------------- what calls print

    def text(self, index: int, kind: int, data: bytes) -> None:
        """What a call wrote."""
        key = (index, kind)
        decoder = self._decoders.get(key)
        if decoder is None:
            decoder = self._decoders[key] = codecs.getincrementaldecoder("utf-8")(errors="replace")
        name = _STREAMS[Kind(kind)]
        if self._line is not None:
            self._line.clear()
        elif not self._single and self._progress is not False and self._view is not None:
            self._stand_first()
        if self._touched and name not in self._touched:
            self.flush()  # what went to the other stream was first
        text = decoder.decode(data)
        if self._single:
            self._kept.append(text)
            self._kept_letters += len(text)
            while self._kept_letters > _KEPT_LETTERS and len(self._kept) > 1:
                self._kept_letters -= len(self._kept.popleft())
        getattr(sys, name).write(text)
        self._touched.add(name)

    def _stand_first(self) -> None:
        """In a notebook our line is above what a map's calls write, also where these are quicker than it."""
        if shell_of_kernel() is not None:
            self._line = _line_for(self._began_s, tells=False)
            self._line.show(self._words(), stays=False)

    @property
    def written(self) -> str:
        """What a single call wrote so far; of very much the end."""
        return "".join(self._kept)

    def ended(self, first: int, count: int) -> None:
        """So many calls, from `first` on, wrote all that they will."""
        if self._decoders:
            self._decoders = {key: each for key, each in self._decoders.items() if not 0 <= key[0] - first < count}

    def flush(self) -> None:
        """Let people have what was written."""
        for name in self._touched:
            getattr(sys, name).flush()
        self._touched.clear()

    # ---------------------------------------------------------------- lines of ours

    def state(self, view: MapView) -> None:
        """The map is this now."""
        self._view, self._note = view, ""
        if self._ran_s is None and view.state is not State.QUEUED:
            self._ran_s = time.monotonic()

    def note(self, line: str) -> None:
        """A line that is not about its state, such as an upload."""
        self._note = line
        self.tick()

    def tick(self) -> None:
        """Show what is to be seen, a few times a second."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + _EVERY_S
        line = self._note or self._words()
        if not line or self._progress is False:
            return
        if self._line is None:
            self._line = _line_for(self._began_s, tells=self._progress is True)
        self._line.show(line, stays=self._waits())

    def finish(self, left: str = "") -> None:
        """Nothing more comes; `left`: how it was left, 'failed', 'cancelled' or 'goes on'."""
        self.flush()
        if self._line is not None:
            self._line.end(self._summary(self._view, left) if self._view is not None else "", single=self._single)
            self._line = None

    def _waits(self) -> bool:
        view = self._view
        return view is not None and view.state is State.QUEUED and bool(view.reasons)

    def _words(self) -> str:
        view = self._view
        if view is None:
            return ""
        if self._single or not (view.done or self.done):
            kind = "call" if view.single else "map"
            job = job_view(view, self._requirements)
            if view.state is State.QUEUED and view.runners and not view.reasons:
                job = replace(job, state=State.ASSIGNED)
            line = status_line(job, time.time(), more="")
            return line.replace(" · job ", f" · {kind} ") if view.state is State.QUEUED or not self._single else ""
        return self._progress_line(view)

    def _progress_line(self, view: MapView) -> str:
        total = self.total if self.total is not None else view.total
        done = max(self.done, view.done)
        took_s = time.monotonic() - self._began_s
        if total:
            full = _BAR_LETTERS * done // total
            drawn = f" · {'▓' * full}{'░' * (_BAR_LETTERS - full)} {done:,} of {total:,}"
        else:
            drawn = f" · {done:,} done"
        failed = f" · {view.failed:,} failed" if view.failed else ""
        where = f" · {view.running:,} running" if view.running else ""
        machines = f" on {len(view.workers)} machines" if len(view.workers) > 1 else ""
        left = f" · about {roughly(self._left_s(done, total))} left" if total and 0 < done < total else ""
        lacks = " · who began it is away, and has more to send" if view.left_at is not None else ""
        sign = "□ cancelling" if view.cancelling else "●"
        return f"{sign} {self._name}{drawn}{failed}{where}{machines}{lacks} · {duration(took_s)}{left} · map {view.id}"

    def _left_s(self, done: int, total: int) -> float:
        """How long the others take if they are as quick; until the next one is done the time just runs down."""
        now_s = time.monotonic()
        if done != self._last_done:
            self._last_s, self._last_done = now_s, done
        began_s = self._ran_s if self._ran_s is not None else self._began_s
        return max(1.0, (self._last_s - began_s) * (total - done) / done - (now_s - self._last_s))

    def _summary(self, view: MapView, left: str) -> str:
        took = duration(time.monotonic() - self._began_s)
        done = max(self.done, view.done)
        calls = f" after {done:,} call{'' if done == 1 else 's'}" if not self._single else ""
        which = f"{'call' if self._single else 'map'} {view.id}"
        if view.state is State.FAILED or left == "failed":
            index = self.failed_index if self.failed_index is not None else view.failed_index
            where = calls if self._single or index is None else f" in call {index:,}"
            return f"✗ {self._name} · failed{where} · {took} · {which}"
        if view.state is State.REJECTED:
            return f"✗ {self._name} · no eligible worker · {which}"
        if view.state is State.CANCELLED or view.cancelling or left == "cancelled":
            return f"■ {self._name} · cancelled{calls} · {took} · {which}"
        if left:
            return f"● {self._name} · {left} · {which}"
        failed = f" · {view.failed:,} failed" if view.failed and not self._single else ""
        return f"✓ {self._name} · {calls.removeprefix(' after ') or 'done'} in {took}{failed} · {which}"


_LESS = tuple(
    re.compile(pattern)
    for pattern in (
        r" · (?:map|call) \S+$",
        r" · [\d,]+ running[^·]*?(?= · |$)",
        r" · [\d.]+ (?:s|min|h)\b[^·]*?(?= · |$)",
        r"(?<= · )[▓░]+ ",
        r" · about [^·]* left$",
    )
)
_NAME_LETTERS = 12


def fitted(line: str, letters_wide: int) -> str:
    """A line of ours in so many columns: what says least goes first, then the middle of the name, then of all of it."""
    for less in _LESS:
        if letters(line) <= letters_wide:
            return line
        if less is _LESS[-1]:
            line = _short_name(line, letters_wide)
        if letters(line) > letters_wide:
            line = less.sub("", line)
    return cut(_short_name(line, letters_wide), letters_wide)


def _short_name(line: str, letters_wide: int) -> str:
    name, dot, rest = line.partition(" · ")
    return cut(name, max(_NAME_LETTERS, letters_wide - letters(dot + rest))) + dot + rest


# ---------------------------------------------------------------- where lines stand


class _Line:
    """Nowhere."""

    def show(self, line: str, *, stays: bool) -> None:
        """Show this in place of what stood there; `stays`: it says something also where lines stay."""

    def clear(self) -> None:
        """Something else is about to be written."""

    def end(self, line: str, *, single: bool) -> None:
        """The last one; of a `single` call it may be left out where nothing of it need stay."""


class _TerminalLine(_Line):
    """On stderr, updated in place."""

    def __init__(self) -> None:
        self._shown = ""

    def show(self, line: str, *, stays: bool) -> None:
        fitting = fitted(visible(line), _width() - 1)
        if fitting != self._shown:
            sys.stderr.write(f"\r\x1b[2K{fitting}")
            sys.stderr.flush()
            self._shown = fitting

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
            self._shown = ""

    def end(self, line: str, *, single: bool) -> None:
        self.clear()
        if line and not single:
            sys.stderr.write(f"{visible(line)}\n")
            sys.stderr.flush()


class _PlainLine(_Line):
    """On a stderr that is no terminal: why it waits, once it does for a while; how far it is where it is to tell."""

    def __init__(self, began_s: float, *, tells: bool) -> None:
        self._from_s = began_s + _PLAIN_PATIENCE_S
        self._tells = tells
        self._told_s = began_s
        self._last = ""

    def show(self, line: str, *, stays: bool) -> None:
        now_s = time.monotonic()
        tells = self._tells and now_s >= self._told_s + _PLAIN_EVERY_S
        if (tells or (stays and now_s >= self._from_s)) and line != self._last:
            self._write(line)

    def end(self, line: str, *, single: bool) -> None:
        if line and self._tells:
            self._write(line)

    def _write(self, line: str) -> None:
        self._last, self._told_s = line, time.monotonic()
        sys.stderr.write(f"{visible(line)}\n")
        sys.stderr.flush()


class _CellLine(_Line):
    """In a display of its own under the cell."""

    def __init__(self, shell: Any) -> None:
        from gpulayer.notebook.status import StatusLine

        self._status = StatusLine(shell)

    def show(self, line: str, *, stays: bool) -> None:
        self._status.note(line)

    def end(self, line: str, *, single: bool) -> None:
        if line:
            self._status.note(line)


def _line_for(began_s: float, *, tells: bool) -> _Line:
    shell = shell_of_kernel()
    if shell is not None:
        return _CellLine(shell)
    if sys.stderr is None:
        return _Line()
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        return _TerminalLine()
    return _PlainLine(began_s, tells=tells)


def _width() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
