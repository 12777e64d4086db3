"""Who follows a map is told what is news to him, and sends once for all of it."""

from __future__ import annotations

from pathlib import Path

from gpulayer.protocol.calls import OK, CallRun, MapView
from gpulayer.protocol.types import State
from gpulayer_server.core.events import Effects
from gpulayer_server.maptelling import MapTelling
from gpulayer_server.maptexts import Text
from gpulayer_server.store.streams import Streams

VIEW = MapView(id="m.1", job="m", state=State.RUNNING)


class Listener:
    """Notes what it is told."""

    def __init__(self, *, news: bool = True):
        self._news = news
        self.heard: list[object] = []

    def changed(self, view: MapView) -> bool:
        self.heard.append(view)
        return self._news

    def accepted(self, run: CallRun) -> None:
        self.heard.append(run)

    def wrote(self, texts: list[Text]) -> None:
        self.heard.append(texts)

    def flush(self) -> None:
        self.heard.append("flush")


def test_results_and_a_change_are_sent_together_and_what_was_known_is_not(tmp_path: Path) -> None:
    telling = MapTelling(lambda names: [], Streams(tmp_path))
    one, other = Listener(), Listener(news=False)
    for each in (one, other):
        telling.follow("m.1", each)
    telling.tell(Effects(), {"m.1": VIEW})
    telling.flush()
    assert one.heard == [VIEW, "flush"]
    assert other.heard == [VIEW]
    run = CallRun(map="m.1", first=0, codes=bytes([OK]), data=(b"y",))
    telling.tell(Effects(results=[("m.1", run)]), {"m.1": VIEW})
    telling.flush()
    telling.flush()
    assert one.heard[2:] == other.heard[1:] == [run, VIEW, "flush"]
    telling.unfollow("m.1", one)
    telling.tell(Effects(), {"m.1": VIEW})
    assert len(one.heard) == 5
    assert telling.follows("m")
