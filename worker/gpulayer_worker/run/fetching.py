"""Getting what a run needs from the control plane, for as long as that takes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gpulayer.protocol.types import Outcome, State
from gpulayer.source import SourceError
from gpulayer.source.blobs import BlobError
from gpulayer_worker.run.services import Over
from gpulayer_worker.workspace import FetchError

T = TypeVar("T")

_AGAIN_S = 1.0
_TRIES = 120


async def fetched(
    fetch: Callable[[Callable[[str], None]], T],
    *,
    tell: Callable[[str], None],
    check_wish: Callable[[], None],
    pause: Callable[[float], Awaitable[None]],
) -> T:
    """What `fetch` returns, in a thread; asked for again while the control plane is away.

    Args:
        fetch: blocks; takes what to call with lines about how far it is.
        tell: takes such lines, on the loop.
        check_wish: raises `Over` where nobody wants it any more.
        pause: waits for so many seconds, or until somebody has a wish.

    Raises:
        Over: it can't be had.
    """
    loop, last = asyncio.get_running_loop(), ""

    def tell_from_thread(text: str) -> None:
        loop.call_soon_threadsafe(tell, text)

    for _ in range(_TRIES):
        check_wish()
        try:
            return await asyncio.to_thread(fetch, tell_from_thread)
        except FetchError as error:
            last = str(error)
            tell(f"{error}; trying again")
            await pause(_AGAIN_S)
        except (SourceError, BlobError) as error:
            raise Over(Outcome(state=State.FAILED, problem=str(error))) from error
    raise Over(Outcome(state=State.FAILED, problem=last))
