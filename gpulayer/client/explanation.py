"""What `gl.explain` gives: why a job fits or does not, which shows itself as a table."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from gpulayer.placement import Placing, spelled_out
from gpulayer.protocol.types import Explanation as _Explanation
from gpulayer.protocol.types import Placement

if TYPE_CHECKING:
    from typing_extensions import Unpack


T = TypeVar("T", bound=_Explanation)

ASK_AGAIN_S = 0.2


class Explanation(_Explanation, frozen=True, kw_only=True):
    """Where a job would run now, or why not: `placement`, `eligible`, `reasons`, `nearest`, `chosen`, `devices`.

    As text, in a notebook too, it is a table of all machines with every reason. It is true where the job would be
    taken: it could run now, or would wait.
    """

    def __bool__(self) -> bool:
        return self.placement is not Placement.REJECTED

    def __repr__(self) -> str:
        from gpulayer.explaining import explanation_lines

        return "\n".join(explanation_lines(self))

    __str__ = __repr__


def starting(explanation: _Explanation) -> bool:
    """Whether all that is known is that a worker of this machine is on its way: a moment later there is an answer."""
    reasons = explanation.reasons
    return bool(reasons) and not explanation.eligible and all(reason.code == "starting" for reason in reasons)


def settled(ask: Callable[[], T], pause: Callable[[float], object] = time.sleep) -> T:
    """The answer, asked again while a worker of this machine is on its way.

    That ends with its arrival, or when the control plane does not expect it any more.
    """
    while starting(explanation := ask()):
        pause(ASK_AGAIN_S)
    return explanation


@spelled_out
def explain(**placement: Unpack[Placing]) -> Explanation:
    """Where a job would run now, or why it would not: `Client.explain` of the control plane that `Client()` finds.

    gl.explain(accelerator="cuda", devices=2, min_vram="40GB")
    """
    from gpulayer.client.client import Client

    with Client() as client:
        return client.explain(**placement)
