"""What can be a job, and the one line that says why not."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gpulayer.protocol.types import CellSpec, CommandSpec, JobSpec, Requirements
from gpulayer_server.core.checking import MOST_TASKS, problem_of

RUN = CommandSpec(argv=("run",))
NODES = Requirements(nodes=3)


def command(**more: Any) -> JobSpec:
    return JobSpec(command=CommandSpec(**{"argv": ("run",), **more}))


def job(**more: Any) -> JobSpec:
    return JobSpec(command=RUN, **more)


@pytest.mark.parametrize(
    "spec",
    [
        JobSpec(cell=CellSpec(code="1")),
        JobSpec(cell=CellSpec(code="1", session="s")),
        JobSpec(cell=CellSpec(code="1"), array=((0, 3),)),
        command(env={"A": "b=c", "_": ""}, cwd="a/..b/c", output_globs=("*.pt",)),
        job(array=((0, 0), (5, 9)), retries=3, timeout_s=0.5, grace_s=0.0, priority=-7),
        job(array=((0, MOST_TASKS - 1),)),
        job(requirements=Requirements(nodes=4, accelerator="cuda", devices=8)),
        job(name="a name", labels={"sweep": "lr=0.1", "empty": ""}, after=("k3f9",)),
    ],
)
def test_a_job(spec: JobSpec) -> None:
    assert problem_of(spec) is None


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (JobSpec(), "a job is either a cell or a command, this one is neither"),
        (JobSpec(cell=CellSpec(code="1"), command=RUN), "this one is both"),
        (command(argv=()), "names no program"),
        (command(argv=("", "x")), "names no program"),
        (command(argv=("a", "b\0c")), "zero byte"),
        (command(env={"A=B": "c"}), "'A=B'"),
        (command(env={"": "c"}), "variable ''"),
        (command(cwd="/etc"), "'/etc' is not below the source"),
        (command(cwd="a/../../b"), "is not below the source"),
        (command(cwd="C:/x"), "is not below the source"),
        (JobSpec(cell=CellSpec(code="1", session="s"), array=((0, 1),)), "an array can't run in session 's'"),
        (JobSpec(cell=CellSpec(code="1", session="")), "a session has a name"),
        (JobSpec(cell=CellSpec(code="1", idle_timeout_s=-1.0)), "idle_timeout_s"),
        (job(retries=-1), "retries is a number from 0"),
        (job(timeout_s=0.0), "timeout_s is a time in seconds above 0, not 0.0"),
        (job(timeout_s=math.nan), "timeout_s"),
        (job(grace_s=-1.0), "grace_s"),
        (job(grace_s=math.inf), "grace_s"),
        (job(priority=10**9), "priority"),
        (job(requirements=Requirements(accelerator="cuda", devices=-1)), "devices"),
        (job(requirements=Requirements(frameworks=("torch>>2",))), "torch"),
        (job(requirements=Requirements(nodes=0)), "nodes is a number of machines from 1"),
        (JobSpec(cell=CellSpec(code="1"), requirements=NODES), "a cell runs in one kernel and not on 3 machines"),
        (JobSpec(cell=CellSpec(code="1", session="s"), requirements=NODES), "such as session 's'"),
        (job(array=((0, 3),), requirements=NODES), "leave nodes or the array out"),
        (job(retries=2, requirements=NODES), "with retries=2"),
        (job(array=((3, 2),)), "the array's range 3-2 ends before it begins"),
        (job(array=((0, 5), (5, 9))), "have to ascend: 5-9 comes after 5"),
        (job(array=((4, 5), (0, 1))), "have to ascend"),
        (job(array=((-1, 2),)), "this one has -1-2"),
        (job(array=((0, 10**12),)), "this one has 0-1000000000000"),
        (job(array=((0, MOST_TASKS),)), "10,000 tasks at most, this one 10,001"),
        (job(name="two\nlines"), "a name is one line"),
        (job(name="x" * 201), "a name is one line"),
        (job(labels={"a=b": "c"}), "label 'a=b=c'"),
        (job(labels={"": "c"}), "label '=c'"),
        (job(labels={f"k{n}": "v" for n in range(65)}), "64 labels at most, this one 65"),
        (job(after=tuple(f"j{n}" for n in range(1_001))), "1,000 others at most, this one names 1,001"),
    ],
)
def test_no_job_and_why(spec: JobSpec, said: str) -> None:
    problem = problem_of(spec)
    assert problem is not None
    assert (problem.status, problem.code) == (400, "bad_job")
    assert said in problem.title
    assert "\n" not in problem.title
