"""The kill matrix of commands: which process is killed at which step, and what must be true after it.

`python -m tests.faults.command_matrix` prints the table that stands in docs/reliability.md.
"""

from __future__ import annotations

from tests.faults.matrix import Expect, table

#: A command's steps, in order: number, name, the failpoint at which somebody stands, what is true there.
STEPS: dict[int, tuple[str, str, str]] = {
    1: ("committed", "server.committed", "job and assignment are on disk, no message has left"),
    2: ("assigned", "agent.assigned", "the agent has written the attempt's record, nothing runs"),
    3: ("workspace made", "agent.workspace-made", "its files are there, the keeper was not asked to start it"),
    4: ("spawned", "agent.spawned", "it runs, the agent has just heard of it"),
    5: ("first byte", "agent.first-byte", "the agent has found its first output, and sent nothing of it"),
    6: ("mid-output", "agent.mid-output", "some of its output is sent, more will come"),
    7: ("exit written", "agent.exit-told", "the keeper has written how it ended, the agent has written nothing of it"),
    8: ("mid-delivery", "agent.mid-delivery", "the files that go back are sent, their list is not"),
    9: ("ended told", "agent.end-told", "its end is written by the agent and on its way"),
    10: ("acked", "agent.forgotten", "the agent has heard that all of it is committed, and has let go of nothing yet"),
}

#: A command that ends by itself exits with this code: no kill may lose it.
EXIT_CODE = 7

_WHOLE = Expect(state="failed", exit_code=EXIT_CODE)
_KILLED = Expect(state="failed", output="spooled", signal=9, problem="signal 9")
_LOST = Expect(state="failed", problem="exit unknown")
_UNKNOWN = Expect(state="failed", output="spooled", problem="exit unknown")

_RUNNING = (4, 5, 6)

#: Victim -> step -> expectation. A step that does not apply to a victim is not listed.
MATRIX: dict[str, dict[int, Expect]] = {
    "control plane": dict.fromkeys(STEPS, _WHOLE),
    "agent": {step: _WHOLE for step in STEPS if step > 1},
    "keeper": {step: _LOST if step in _RUNNING else _WHOLE for step in STEPS if step > 1},
    "command": dict.fromkeys(_RUNNING, _KILLED),
    "keeper, then command": dict.fromkeys(_RUNNING, _UNKNOWN),
}


def markdown() -> str:
    """The matrix as a table."""
    return table(STEPS, MATRIX)


if __name__ == "__main__":
    print(markdown())
