"""What `gl.explain` gives: why a job fits or does not, which shows itself as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpulayer.placement import Placing, spelled_out
from gpulayer.protocol.types import Explanation as _Explanation
from gpulayer.protocol.types import Placement

if TYPE_CHECKING:
    from typing_extensions import Unpack


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


@spelled_out
def explain(**placement: Unpack[Placing]) -> Explanation:
    """Where a job would run now, or why it would not: `Client.explain` of the control plane that `Client()` finds.

    gl.explain(accelerator="cuda", devices=2, min_vram="40GB")
    """
    from gpulayer.client.client import Client

    with Client() as client:
        return client.explain(**placement)
