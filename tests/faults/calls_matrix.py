"""The kill matrices of calls: which process is killed at which step of a map, and what must be true after it.

`python -m tests.faults.calls_matrix` prints the tables that stand in docs/reliability.md.
"""

from __future__ import annotations

from dataclasses import dataclass

#: The failpoint of the test's own function, in the middle of one of its calls.
RUNNING = "call.running"

#: A call's steps, in order: number, name, the failpoint at which somebody stands, what is true there.
STEPS: dict[int, tuple[str, str, str]] = {
    1: ("arguments sent", "server.map-asked", "the control plane has the arguments, nothing is committed"),
    2: ("committed", "server.committed", "map and arguments are on disk, no message has left"),
    3: ("calls sent", "server.calls-sent", "calls are on their way to the worker"),
    4: ("calls came", "agent.calls-came", "the agent has calls, its runner has none of them"),
    5: ("runner started", "runner.started", "the runner's process lives, its function is not loaded"),
    6: ("running", RUNNING, "a call runs"),
    7: ("result made", "runner.result", "a call has returned, what it returned is in its process alone"),
    8: ("result read", "agent.calls-done", "the agent has read results, and told nobody"),
    9: ("result came", "server.calls-done", "the control plane has results, nothing of them is committed"),
    10: ("result committed", "server.results-committed", "results are on disk, no message has left"),
    11: ("accepted told", "agent.calls-accepted", "the agent has heard that, the runner has not"),
}


@dataclass(frozen=True, kw_only=True)
class Expect:
    """What must be true after a kill. In every case a call whose result was accepted before never runs again."""

    again: bool = False  # calls that the killed runner had run again; no other call does
    gone: bool = False  # the object is: results up to there, then a failure that says why

    @property
    def words(self) -> str:
        """A cell of the table."""
        if self.gone:
            return "fails: the object is gone; no call twice"
        return "all results; again only what that runner had" if self.again else "all results; each call once"


_ONCE = Expect()
_AGAIN = Expect(again=True)
_GONE = Expect(gone=True)
_FROM_RUNNER = [step for step in STEPS if step >= 5]
_FROM_CALL = [step for step in STEPS if step >= 6]

Matrix = dict[str, dict[int, Expect]]

#: Victim -> step -> expectation, for a map of a function with two runners. What does not apply is not listed.
MATRIX: Matrix = {
    "control plane": dict.fromkeys(STEPS, _ONCE),
    "agent": dict.fromkeys(STEPS, _ONCE),
    "keeper": dict.fromkeys(STEPS, _ONCE),
    "runner": {5: _ONCE, **dict.fromkeys(_FROM_CALL, _AGAIN)},
    "client": dict.fromkeys(STEPS, _ONCE),
    "keeper, then runner": {5: _ONCE, **dict.fromkeys(_FROM_CALL, _AGAIN)},
}

#: The same for a map of a method of an object, which lives in one runner.
OBJECTS: Matrix = {
    "control plane": dict.fromkeys(_FROM_RUNNER, _ONCE),
    "agent": dict.fromkeys(_FROM_RUNNER, _ONCE),
    "keeper": dict.fromkeys(_FROM_RUNNER, _ONCE),
    "runner": dict.fromkeys(_FROM_RUNNER, _GONE),
    "client": dict.fromkeys(_FROM_RUNNER, _ONCE),
    "keeper, then runner": dict.fromkeys(_FROM_RUNNER, _GONE),
}

MATRICES: dict[str, Matrix] = {"function": MATRIX, "object": OBJECTS}

#: What `make test` runs of them; `make test-all` runs all.
SAMPLE: dict[str, dict[str, tuple[int, ...]]] = {
    "function": {
        "control plane": (1, 6, 10),
        "agent": (4, 8),
        "keeper": (5, 6),
        "runner": (5, 7, 9),
        "client": (2, 11),
        "keeper, then runner": (6, 8),
    },
    "object": {"control plane": (9,), "agent": (6,), "runner": (7,)},
}


def markdown(matrix: Matrix) -> str:
    """A matrix as a table."""
    lines = ["| step | " + " | ".join(matrix) + " |", "|---" * (len(matrix) + 1) + "|"]
    for number, (name, _, _) in STEPS.items():
        row = [each[number].words if number in each else "–" for each in matrix.values()]
        if any(number in each for each in matrix.values()):
            lines.append(f"| {number} {name} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def steps() -> str:
    """The steps as a table."""
    lines = ["| step | somebody stands at | what is true there |", "|---|---|---|"]
    lines += [f"| {number} {name} | `{point}` | {there} |" for number, (name, point, there) in STEPS.items()]
    return "\n".join(lines)


def tables() -> str:
    """All that stands in the docs."""
    return "\n\n".join([steps(), markdown(MATRIX), "An object and one of its methods:", markdown(OBJECTS)])


if __name__ == "__main__":
    print(tables())
