"""Problem details in HTTP answers: whether a control plane has answered, and what it says."""

from __future__ import annotations

import msgspec

from gpulayer.protocol.types import Problem

ENDED_TOKENS = ("token_revoked", "token_expired", "token_used")
"""The codes of a control plane that knows the token it was given, and that it is good for nothing any more."""

_PROBLEM_BYTES = 65_536


def problem_in(content_type: str, body: bytes) -> Problem | None:
    """The problem that an answer tells of; None where it is no control plane's."""
    if not content_type.startswith("application/problem+json") or len(body) > _PROBLEM_BYTES:
        return None
    try:
        return msgspec.json.decode(body, type=Problem)
    except msgspec.MsgspecError:
        return None
