"""The table of moves, and the diagram that is drawn from it."""

from __future__ import annotations

import itertools

import pytest

from gpulayer.protocol.types import TERMINAL, State
from gpulayer_server.core.lifecycle import MOVES, IllegalMove, check_move, diagram
from gpulayer_server.core.state import Task

LEGAL = {
    "queued": "assigned cancelled failed rejected",
    "assigned": "running cancelled failed queued unreachable",
    "running": "succeeded failed cancelled unreachable",
    "unreachable": "running lost",
    "lost": "queued failed",
}
PAIRS = {(State(old), State(new)) for old, news in LEGAL.items() for new in news.split()}


@pytest.mark.parametrize(("old", "new"), sorted(PAIRS))
def test_legal_move(old, new):
    task = Task(id="t/0", job="t", n=1, index=0, state=old)
    task.move(new)
    assert task.state is new


@pytest.mark.parametrize(("old", "new"), sorted(set(itertools.product(State, State)) - PAIRS))
def test_any_other_move_raises_and_changes_nothing(old, new):
    task = Task(id="t/0", job="t", n=1, index=0, state=old)
    with pytest.raises(IllegalMove, match=f"task t/0: no move from {old.value} to {new.value}"):
        task.move(new)
    assert task.state is old


def test_no_move_leaves_a_terminal_state():
    for old, new in itertools.product(TERMINAL, State):
        with pytest.raises(IllegalMove):
            check_move("t", old, new)


def test_diagram_has_one_arrow_for_each_move_and_each_end():
    lines = [line.strip() for line in diagram().splitlines()]
    assert lines[:2] == ["stateDiagram-v2", "[*] --> queued"]
    arrows = {f"{old.value} --> {new.value}: {when}" for (old, new), when in MOVES.items()}
    ends = {f"{state.value} --> [*]" for state in TERMINAL}
    assert set(lines[2:]) == arrows | ends
    assert len(lines) == 2 + len(PAIRS) + len(TERMINAL)
