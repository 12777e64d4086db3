"""The moves of a task, in one table; any other move raises. The diagram in the docs is drawn from it.

`python -m gpulayer_server.core.lifecycle` prints the diagram.
"""

from __future__ import annotations

from gpulayer.protocol.types import TERMINAL, State

#: (from, to) -> when. Nothing else moves a task.
MOVES: dict[tuple[State, State], str] = {
    (State.QUEUED, State.ASSIGNED): "a worker fits and has room",
    (State.QUEUED, State.CANCELLED): "a person cancels, or it is a runner that nobody needs any more",
    (State.QUEUED, State.FAILED): "another machine of its job had begun when this one could not",
    (State.QUEUED, State.REJECTED): "no worker could take it, or a job that it waits for did not succeed",
    (State.ASSIGNED, State.RUNNING): "the worker says: its first record is in the spool",
    (State.ASSIGNED, State.CANCELLED): "the worker confirms the cancel",
    (State.ASSIGNED, State.FAILED): "the worker could not start it",
    (State.ASSIGNED, State.QUEUED): "the worker says: it never started",
    (State.ASSIGNED, State.UNREACHABLE): "no word from the worker",
    (State.RUNNING, State.SUCCEEDED): "its end is recorded, its stream whole",
    (State.RUNNING, State.FAILED): "its end is recorded, its stream whole",
    (State.RUNNING, State.CANCELLED): "the worker confirms the cancel",
    (State.RUNNING, State.UNREACHABLE): "no word from the worker",
    (State.UNREACHABLE, State.RUNNING): "the worker returns and holds it",
    (State.UNREACHABLE, State.LOST): "its lease ended, a person gave it up, or the worker no longer holds it",
    (State.LOST, State.QUEUED): "a retry is left, or it never started",
    (State.LOST, State.FAILED): "no retry is left",
}


class IllegalMove(RuntimeError):
    """A move that the table does not hold: a fault of ours."""


def check_move(task: str, old: State, new: State) -> None:
    """Raise `IllegalMove` unless the table holds the move `old` to `new`."""
    if (old, new) not in MOVES:
        raise IllegalMove(f"task {task}: no move from {old.value} to {new.value}")


def diagram() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", "    [*] --> queued"]
    lines += [f"    {old.value} --> {new.value}: {when}" for (old, new), when in MOVES.items()]
    lines += [f"    {state.value} --> [*]" for state in State if state in TERMINAL]
    return "\n".join(lines)


if __name__ == "__main__":
    print(diagram())  # noqa: T201 the command's own output
