"""What stands in the place of a result that there will never be."""

from __future__ import annotations

import msgspec

from gpulayer.protocol.calls import RUNNER_DIED, CallFailure, CallRun


def failure(text: str, worker: str = "") -> bytes:
    """Of a call whose runner died."""
    return msgspec.json.encode(CallFailure(kind="died", text=text, worker=worker))


def died_run(name: str, index: int, text: str, worker: str) -> CallRun:
    """The result of one call of a map whose runner died."""
    return CallRun(map=name, first=index, codes=bytes([RUNNER_DIED]), data=(failure(text, worker),))
