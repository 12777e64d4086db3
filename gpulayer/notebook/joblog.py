"""The text of a job so far: `%gpulayer logs`."""

from __future__ import annotations

from typing import Any

from gpulayer.client.connection import Connection
from gpulayer.client.errors import ControlPlaneError, RequestRefused, interrupted
from gpulayer.notebook.replay import Replay
from gpulayer.notebook.stop import Stop
from gpulayer.protocol.messages import Chunk, Refused, Update
from gpulayer.protocol.types import JobView

_LOOK_S = 0.2
_SILENT_LOOKS = 150  # half a minute without a word of the control plane


class TextReplay(Replay):
    """Replays what a job has to say as text alone: results, displays and errors too, and raises nothing."""

    def __init__(self, shell: Any, job: str, max_output_bytes: int):
        super().__init__(shell, job, max_output_bytes)
        self.letters = 0  # that came, shown or not
        self._comms = None

    def _text(self, name: str, text: str) -> None:
        self.letters += len(text)
        super()._text(name, text)

    def _display(self, content: dict[str, Any], *, update: bool) -> None:
        text = content["data"].get("text/plain", "")
        if text and not update:
            self._text("stdout", f"{text}\n")

    def _on_execute_result(self, content: dict[str, Any]) -> None:
        self._display(content, update=False)

    def _on_clear_output(self, content: dict[str, Any]) -> None:
        """What was cleared was said all the same."""

    def _on_error(self, content: dict[str, Any]) -> None:
        self._text("stdout", "\n".join(content["traceback"]) + "\n")

    def _on_reply(self, reply: dict[str, Any]) -> None:
        """How it ended is the job's state to tell."""


def show_so_far(connection: Connection, replay: TextReplay, job: str, stop: Stop) -> JobView:
    """Replay what there is of a job's stream, and wait for nothing that it still has to say.

    A subscription's first words are the stream's next bytes, if there are any. So it is asked for again, from where the
    last one came to, until there are none. Raises `RequestRefused`, `ControlPlaneError` or KeyboardInterrupt.
    """
    reader = _Reader(connection, replay, job, stop)
    while True:
        view, came = reader.round()
        if view.terminal or not came:
            replay.finish()
            return view


class _Reader:
    def __init__(self, connection: Connection, replay: TextReplay, job: str, stop: Stop):
        self._connection = connection
        self._replay = replay
        self._job = job
        self._stop = stop
        self._attempt: str | None = None
        self._offset = 0

    def round(self) -> tuple[JobView, bool]:
        """One subscription: the job as it is, and whether bytes came before that was said."""
        subscription = self._connection.follow(self._job, attempt=self._attempt, offset=self._offset)
        self._stop.watch(subscription)
        came, silent = False, 0
        try:
            while True:
                message = subscription.get(_LOOK_S)
                if self._stop.wanted:
                    raise interrupted()
                if message is None:
                    silent += 1
                    if silent > _SILENT_LOOKS:
                        why = self._connection.away or "no word from it"
                        raise ControlPlaneError(f"the control plane does not answer: {why}")
                elif isinstance(message, Chunk):
                    came, silent = True, 0
                    self._take(message)
                elif isinstance(message, Refused):
                    raise RequestRefused(message.problem)
                elif isinstance(message, Update):
                    return message.job, came
        finally:
            self._connection.unfollow(subscription)

    def _take(self, chunk: Chunk) -> None:
        if chunk.attempt != self._attempt and self._attempt is not None:
            self._replay.restart()
        self._attempt, self._offset = chunk.attempt, chunk.offset + len(chunk.data)
        self._replay.feed(chunk.data)
