"""`gl.put`: a value that many calls share."""

from __future__ import annotations

from typing import Any

from gpulayer.functions.hub import hub
from gpulayer.functions.options import CallRefused
from gpulayer.protocol.values import ValueRefused
from gpulayer.protocol.values.calls import Ref, pack_pieces


def put(value: Any) -> Any:
    """Send a value once; what is returned stands for it in the arguments of any number of calls.

        weights = gl.put(array)
        list(score.map(range(1000), [weights] * 1000))

    A worker fetches it once, and a process decodes it once: calls that change it see each other's changes. It stands
    for an argument itself, not for something in a list or dict.

    Raises:
        CallRefused: the value can't travel. RequestRefused, ControlPlaneError: it was not taken.
    """
    try:
        pieces = pack_pieces(value, name="put(value)")
    except ValueRefused as refused:
        raise CallRefused(str(refused)) from None
    digest, size_bytes = hub().blobs.put_pieces(pieces)
    return Ref(digest, size_bytes)
