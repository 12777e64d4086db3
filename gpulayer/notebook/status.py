"""The one line under a cell, updated in place."""

from __future__ import annotations

import sys
import time
from typing import Any

from gpulayer.protocol.types import JobView, State
from gpulayer.words import status_line


class StatusLine:
    """Shows a job's state in one display of its own; where there is no front end, on stderr when it matters.

    With `quiet` it shows nothing.
    """

    def __init__(self, shell: Any, *, quiet: bool = False):
        self._shell = shell
        self._rich = hasattr(shell, "kernel")
        self._quiet = quiet
        self._shown = ""
        self._id = ""
        self._next_at = 0.0
        self._job: JobView | None = None
        self.sent = ""  # which files travelled with the cell, in words

    def show(self, job: JobView) -> None:
        """The job is this now."""
        self._job = job
        self._publish(status_line(job, time.time(), self.sent))

    def tick(self) -> None:
        """While it runs, the elapsed time goes on; about once a second."""
        now = time.monotonic()
        if self._job is None or self._job.state is not State.RUNNING or now < self._next_at:
            return
        self._next_at = now + 1.0
        self.show(self._job)

    def note(self, text: str) -> None:
        """A line that is not about a job's state, such as an upload."""
        self._publish(text)

    def again(self) -> None:
        """The cell has cleared its output, and this with it: show it anew, before what comes next."""
        if self._shown and self._rich:
            self._display({"text/plain": self._shown}, {"display_id": self._id}, update=False)

    def _publish(self, line: str) -> None:
        if line == self._shown or self._quiet:
            return
        self._next_at = time.monotonic() + 1.0
        first, self._shown = not self._shown, line
        if not self._rich:
            if self._job is None or self._job.state is not State.RUNNING:
                print(line, file=sys.stderr)  # noqa: T201 a terminal's own status
            return
        if first:
            self._id = f"gpulayer-status-{id(self)}-{time.time_ns()}"
        self._display({"text/plain": line}, {"display_id": self._id}, update=not first)

    def _display(self, data: dict[str, str], transient: dict[str, str], *, update: bool) -> None:
        """Show or update it. `publish` flushes both streams first and waits for that, which an update has no need of.

        Where somebody has hooked into the publishing, such as an Output widget, it goes by `publish` all the same.
        """
        publisher = self._shell.display_pub
        if not update or not hasattr(publisher, "pub_socket") or getattr(publisher, "_hooks", ()):
            publisher.publish(data, {}, transient=transient, update=update)
            return
        content = {"data": data, "metadata": {}, "transient": transient}
        header, topic = publisher.parent_header, publisher.topic
        publisher.session.send(publisher.pub_socket, "update_display_data", content, parent=header, ident=topic)
