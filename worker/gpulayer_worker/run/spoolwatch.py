"""Reading along in a cell's spool: how far whole records reach, when it began, how it ended."""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path
from typing import Any

from gpulayer.protocol.records import HEADER_BYTES, Kind, decode_kernel, decode_text
from gpulayer.protocol.spool import SpoolReader
from gpulayer_worker.run.outcome import last_line

_LAST_RECORDS = 64  # of which the cell's last line is looked for
_LAST_BYTES = 256 * 1024
_LAST_LETTERS = 1000
_REPLY_AND_IDLE = 1024 * 1024  # the last two records are small; anything larger is neither


class CellSpool:
    """A cell's spool as it grows. The reply's record, then the idle status, end it."""

    def __init__(self, folder: Path):
        self.reader = SpoolReader(folder)
        self.end = self.reader.start()
        self.reply: dict[str, Any] | None = None
        self.idle = False
        self.records = 0  # walked over
        self._checked = self.end
        self._last: deque[tuple[int, int, int]] = deque(maxlen=_LAST_RECORDS)  # of text: place, kind, length

    @property
    def began(self) -> bool:
        """Whether the first record is there: the kernel took the cell."""
        return self.end > 0

    def look(self) -> bool:
        """Look at the files again; True when there is more than before."""
        end = self.reader.end()
        if end <= self.end:
            return False
        self.end = end
        self._search()
        return True

    def _search(self) -> None:
        """Walk the new records by their headers; read only what may be the reply and the idle after it."""
        while self._checked < self.end and not self.idle:
            head = self.reader.read(self._checked, HEADER_BYTES + 1)
            length = int.from_bytes(head[:4], "little")
            kind = head[HEADER_BYTES] if len(head) > HEADER_BYTES else 0
            after_reply = self.reply is not None and kind == Kind.KERNEL
            if (kind == Kind.REPLY or after_reply) and length <= _REPLY_AND_IDLE:
                body = self.reader.read(self._checked + HEADER_BYTES + 1, length - 1)
                self._judge(kind, body)
            if kind in (Kind.KERNEL, Kind.TEXT) and length <= _LAST_BYTES:
                self._last.append((self._checked, kind, length))
            self._checked += HEADER_BYTES + length
            self.records += 1

    def _judge(self, kind: int, body: bytes) -> None:
        if kind == Kind.REPLY:
            self.reply = json.loads(body)
            return
        header, _, _, content = decode_kernel(body)[:4]
        if json.loads(header).get("msg_type") == "status":
            self.idle = json.loads(content).get("execution_state") == "idle"

    def last_line(self) -> str:
        """The last line that the cell has printed up to the last look; '' for none."""
        text = ""
        for start, kind, length in reversed(self._last):
            if start < self.reader.start() or len(text) > _LAST_LETTERS:
                break
            text = self._text(kind, self.reader.read(start + HEADER_BYTES + 1, length - 1)) + text
        return last_line(text)

    def _text(self, kind: int, body: bytes) -> str:
        if kind == Kind.TEXT:
            return decode_text(body)[1].decode(errors="replace")
        header, _, _, content = decode_kernel(body)[:4]
        return json.loads(content).get("text", "") if json.loads(header).get("msg_type") == "stream" else ""

    def close(self) -> None:
        """Close its files."""
        self.reader.close()
