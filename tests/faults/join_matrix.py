"""The kill matrix of joining: which process is killed at which step, and what a person has to do after it.

`python -m tests.faults.join_matrix` prints the table that stands in docs/reliability.md.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Number, name, failpoint at which somebody stands, what is true there.
STEPS: dict[int, tuple[str, str, str]] = {
    1: ("token sent", "server.join-asked", "the token has come, nothing is decided"),
    2: ("committed", "server.exchanged", "the token is used up and the credential made, no answer has left"),
    3: ("exchanged", "join.exchanged", "the answer was read, nothing is on the worker's disk"),
    4: ("credential stored", "join.stored", "the credential is on the worker's disk, no keeper has started"),
}


@dataclass(frozen=True, kw_only=True)
class Expect:
    """What a person meets: whether the same line has to be pasted again, and the word that says so."""

    again: bool
    said: str = ""


_KILLED = Expect(again=True)
_BROKEN_OFF = Expect(again=True, said="broke off before it answered")
_GOES_ON = Expect(again=False)

#: Victim -> step -> expectation.
MATRIX: dict[str, dict[int, Expect]] = {
    "joining process": {1: _KILLED, 2: _KILLED, 3: _KILLED, 4: _KILLED},
    "control plane": {1: _BROKEN_OFF, 2: _BROKEN_OFF, 3: _GOES_ON, 4: _GOES_ON},
}


def words(expect: Expect) -> str:
    """A cell of the table."""
    if not expect.again:
        return "joins by itself once the control plane is back"
    return f"'{expect.said}'; the same line again joins it" if expect.said else "the same line again joins it"


def markdown() -> str:
    """The matrix as a table."""
    lines = ["| step | somebody stands at | what is true there | " + " | ".join(MATRIX) + " |"]
    lines.append("|---" * (len(MATRIX) + 3) + "|")
    for number, (name, point, there) in STEPS.items():
        row = [words(expectations[number]) for expectations in MATRIX.values()]
        lines.append(f"| {number} {name} | `{point}` | {there} | " + " | ".join(row) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown())
