"""Why maps wait: told to those who follow them in a moment, and kept until it is looked at again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from gpulayer.protocol.calls import CallRun, MapView
from gpulayer.protocol.types import Reason, State
from gpulayer_server.core.events import Effects
from gpulayer_server.maptelling import MapTelling
from gpulayer_server.maptexts import Text

BUSY = Reason(worker="box", code="slots", text="all 2 slots busy", temporary=True)


class Listener:
    """Follows a map, and keeps what it is told."""

    def __init__(self) -> None:
        self.views: list[MapView] = []
        self.flushed = asyncio.Event()

    def changed(self, view: MapView) -> bool:
        self.views.append(view)
        return True

    def accepted(self, run: CallRun) -> None:
        raise NotImplementedError

    def wrote(self, texts: list[Text]) -> None:
        raise NotImplementedError

    def flush(self) -> None:
        self.flushed.set()


class Waiting:
    """Maps that wait, and why."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.taken = 0

    def __call__(self, names: Iterable[str]) -> Sequence[MapView]:
        names = list(names)
        self.asked.append(names)
        return [replace(view(name, self.taken), reasons=(BUSY,), nearest="two more slots") for name in names]


def view(name: str, taken: int, state: State = State.QUEUED, runners: int = 0) -> MapView:
    return MapView(id=name, job=name.rpartition(".")[0], state=state, taken=taken, runners=runners)


async def told(follows: Listener) -> MapView:
    await follows.flushed.wait()
    follows.flushed.clear()
    return follows.views[-1]


def test_a_map_that_waits_says_why_in_a_moment_and_goes_on_to_say_it() -> None:
    async def run() -> None:
        waiting, follows = Waiting(), Listener()
        streams: Any = None
        telling = MapTelling(waiting, streams)
        telling.follow("k3f9.1", follows)
        for taken in range(5):
            telling.tell(Effects(), {"k3f9.1": view("k3f9.1", taken), "k3f9.2": view("k3f9.2", taken)})
        assert [each.reasons for each in follows.views] == [()] * 5
        waiting.taken = 4
        telling.flush()
        follows.flushed.clear()
        assert (await told(follows)).reasons == (BUSY,)
        assert waiting.asked == [["k3f9.1"]]  # once for all five, and not for what nobody follows
        telling.tell(Effects(), {"k3f9.1": view("k3f9.1", 5)})
        assert (follows.views[-1].taken, follows.views[-1].reasons) == (5, (BUSY,))
        assert follows.views[-1].nearest == "two more slots"
        telling.close()

    asyncio.run(run())


def test_a_map_that_has_a_runner_waits_for_nothing() -> None:
    async def run() -> None:
        waiting, follows = Waiting(), Listener()
        streams: Any = None
        telling = MapTelling(waiting, streams)
        telling.follow("k3f9.1", follows)
        telling.tell(Effects(), {"k3f9.1": view("k3f9.1", 1)})
        telling.flush()
        follows.flushed.clear()
        await told(follows)
        telling.tell(Effects(), {"k3f9.1": view("k3f9.1", 1, State.RUNNING, 1)})
        assert follows.views[-1].reasons == ()
        telling.unfollow("k3f9.1", follows)
        telling.tell(Effects(fleet_changed=True), {"k3f9.1": view("k3f9.1", 2)})
        assert len(waiting.asked) == 1
        assert follows.views[-1].taken == 1
        telling.close()

    asyncio.run(run())
