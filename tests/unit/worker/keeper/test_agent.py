"""When an agent is started, and when no more."""

from __future__ import annotations

import itertools
from pathlib import Path

from gpulayer_worker.keeper.agent import Agent, jittered, next_pause_s
from gpulayer_worker.keeper.context import Context
from gpulayer_worker.keeper.eventloop import Loop
from gpulayer_worker.keeper.records import Folder


def test_the_pauses_double_up_to_ten_seconds() -> None:
    pauses = list(itertools.accumulate([0.0] * 10, lambda last, _: next_pause_s(last, 0.0)))
    assert pauses == [0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]


def test_an_agent_that_lived_a_while_begins_anew() -> None:
    assert next_pause_s(10.0, 29.9) == 10.0
    assert next_pause_s(10.0, 30.0) == 0.1


def test_jitter_keeps_at_least_half_of_a_pause() -> None:
    pauses = [jittered(8.0) for _ in range(200)]
    assert all(4.0 <= pause <= 8.0 for pause in pauses)
    assert len(set(pauses)) > 100


def test_an_agent_that_was_stopped_before_its_start_is_not_started(tmp_path: Path) -> None:
    loop, ends = Loop(), []
    folder = Folder(str(tmp_path))
    folder.prepare()
    context = Context(loop=loop, folder=folder, portable=False)
    agent = Agent(context, ["sleep", "3600"], {}, ends.append)
    agent.stop()
    agent.start()
    assert ends == [None]
    assert agent.pid is None
    assert not Path(folder.agent).exists()
    loop.close()
