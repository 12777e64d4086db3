"""The kill matrix: which process is killed at which step of a cell, and what must be true after it.

`python -m tests.faults.matrix` prints the table that stands in docs/reliability.md.
"""

from __future__ import annotations

from dataclasses import dataclass

#: The protocol's steps, in order: number, name, the failpoint at which somebody stands, what is true there.
STEPS: dict[int, tuple[str, str, str]] = {
    1: ("bundle sent", "server.bundle-sent", "the control plane has the source and the submit, nothing is committed"),
    2: ("committed", "server.committed", "job and assignment are on disk, no message has left"),
    3: ("assigned", "agent.assigned", "the agent has written the attempt's record, nothing runs"),
    4: ("started", "kernel.started", "the kernel's first record is in the spool"),
    5: ("first byte", "kernel.first-byte", "the first output record is in the spool"),
    6: ("mid-output", "kernel.mid-output", "five output records are in the spool, more will come"),
    7: ("last byte", "kernel.last-byte", "the reply is in the spool, the idle status is not"),
    8: ("idle written", "agent.idle-written", "the agent has read the last record, and sent nothing of it"),
    9: ("acked", "agent.acked", "the agent has heard that the control plane holds the whole stream"),
}


@dataclass(frozen=True)
class Expect:
    """What must be true after a kill: the job's state, how much output there is, words in the record."""

    state: str = "succeeded"
    output: str = "whole"  # 'whole', or 'spooled': what had reached the spool
    signal: int | None = None
    problem: str = ""
    exit_code: int | None = None


_WHOLE = Expect()
_KERNEL = Expect(state="failed", output="spooled", signal=9, problem="signal 9")
_UNKNOWN = Expect(state="failed", output="spooled", problem="exit unknown")

#: Victim -> step -> expectation. A step that does not apply to a victim is not listed. Keepers come last: a kernel
#: that a dead keeper started ends with an unknown exit code.
MATRIX: dict[str, dict[int, Expect]] = {
    "notebook kernel": {
        1: _WHOLE,
        2: _WHOLE,
        3: _WHOLE,
        4: _WHOLE,
        5: _WHOLE,
        6: _WHOLE,
        7: _WHOLE,
        8: _WHOLE,
        9: _WHOLE,
    },
    "control plane": {
        1: _WHOLE,
        2: _WHOLE,
        3: _WHOLE,
        4: _WHOLE,
        5: _WHOLE,
        6: _WHOLE,
        7: _WHOLE,
        8: _WHOLE,
        9: _WHOLE,
    },
    "agent": {
        1: _WHOLE,
        2: _WHOLE,
        3: _WHOLE,
        4: _WHOLE,
        5: _WHOLE,
        6: _WHOLE,
        7: _WHOLE,
        8: _WHOLE,
        9: _WHOLE,
    },
    "remote kernel": {
        4: _KERNEL,
        5: _KERNEL,
        6: _KERNEL,
        7: _KERNEL,
        8: _WHOLE,
        9: _WHOLE,
    },
    "keeper": {
        1: _WHOLE,
        2: _WHOLE,
        3: _WHOLE,
        4: _WHOLE,
        5: _WHOLE,
        6: _WHOLE,
        7: _WHOLE,
        8: _WHOLE,
        9: _WHOLE,
    },
    "keeper, then remote kernel": {
        4: _UNKNOWN,
        5: _UNKNOWN,
        6: _UNKNOWN,
        7: _UNKNOWN,
        8: _WHOLE,
        9: _WHOLE,
    },
}


def words(expect: Expect | None) -> str:
    """A cell of the table."""
    if expect is None:
        return "–"
    output = "all output once" if expect.output == "whole" else "what was spooled, once"
    why = f" ({expect.problem})" if expect.problem else ""
    why = why or (f" (exit code {expect.exit_code})" if expect.exit_code is not None else "")
    return f"{expect.state}{why}, {output}"


def table(steps: dict[int, tuple[str, str, str]], matrix: dict[str, dict[int, Expect]]) -> str:
    """A matrix as a table."""
    lines = ["| step | " + " | ".join(matrix) + " |", "|---" * (len(matrix) + 1) + "|"]
    for number, (name, _, _) in steps.items():
        row = [words(expectations.get(number)) for expectations in matrix.values()]
        lines.append(f"| {number} {name} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def markdown() -> str:
    """The matrix of cells as a table."""
    return table(STEPS, MATRIX)


if __name__ == "__main__":
    print(markdown())
