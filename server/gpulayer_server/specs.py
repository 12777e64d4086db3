"""Jobs of calls as clients send them, with each map: what came a moment ago is neither decoded nor looked for again."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256

import msgspec

from gpulayer.protocol.types import JobSpec, Problem

_KEPT = 256  # of functions that are called again and again
_RELIED_S = 60.0  # so long files that were found are not looked for again: what is relied on stays for an hour
_decode = msgspec.msgpack.Decoder(JobSpec).decode


@dataclass(slots=True)
class Known:
    """A job of calls. `payload_hash` tells whether two are the same."""

    spec: JobSpec
    payload_hash: str
    relied_at: float = float("-inf")  # when its files were last seen to be here


class Specs:
    """Those that came last. Used on the loop's thread."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, Known] = OrderedDict()

    def of(self, packed: bytes) -> Known | Problem:
        """The job of these bytes, or why there can be none."""
        digest = sha256(packed).digest()
        known = self._known.get(digest)
        if known is not None:
            self._known.move_to_end(digest)
            return known
        try:
            spec = _decode(packed)
        except msgspec.MsgspecError as error:
            return Problem(status=400, code="bad_job", title="the job of a map is not of its form", detail=str(error))
        if spec.calls is None:
            title = "a map is of a job of calls, this one is of another kind"
            return Problem(status=400, code="bad_job", title=title)
        known = self._known[digest] = Known(spec, digest.hex())
        if len(self._known) > _KEPT:
            self._known.popitem(last=False)
        return known

    def lacks(self, known: Known, look: Callable[[JobSpec], Problem | None]) -> Problem | None:
        """What `look` finds to be missing; what it found to be here it is not asked again for a while."""
        now = time.monotonic()
        if now - known.relied_at <= _RELIED_S:
            return None
        problem = look(known.spec)
        if problem is None:
            known.relied_at = now
        return problem
