"""What can't be the job of a map is refused in one line that says why."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpulayer.protocol.types import CellSpec, JobSpec, Requirements
from gpulayer_server.core.checking import problem_of, problem_of_calls
from tests.unit.server.core.calls.conftest import calls_spec

SPEC = calls_spec()


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (replace(SPEC, array=((0, 3),)), "can't be an array"),
        (replace(SPEC, requirements=Requirements(nodes=2)), "runs on one machine, and not on 2"),
        (replace(SPEC, after=("k3f9",)), "can't run after k3f9"),
        (replace(SPEC, cell=CellSpec(code="1", session="s")), "of nothing else"),
        (replace(SPEC, retries=1), "its job has no retries"),
        (replace(SPEC, timeout_s=3.0), "its job has no timeout"),
        (replace(SPEC, requirements=Requirements(devices=-1)), "devices"),
        (calls_spec(max_runners=0), "max_runners is a number from 1 on, not 0"),
        (calls_spec(idle_timeout_s=-1.0), "idle_timeout_s is a time"),
        (calls_spec(memory_limit_bytes=0), "memory_limit"),
        (calls_spec(stateful=True), "a name of its own"),
        (calls_spec(stateful=True, instance="i", isolate=True), "one process"),
        (JobSpec(), "of calls of a function"),
    ],
)
def test_what_a_map_can_not_be_is_said_in_one_line(spec: JobSpec, words: str) -> None:
    problem = problem_of_calls(spec)
    assert problem is not None
    assert words in problem.title
    assert len(problem.title.splitlines()) == 1


def test_calls_are_not_submitted_as_a_job() -> None:
    assert problem_of_calls(SPEC) is None
    problem = problem_of(SPEC)
    assert problem is not None
    assert problem.title == "calls of a function come by maps: they can't be submitted as a job"
