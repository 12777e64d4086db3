"""Every victim of the commands' matrix killed (`kill -9`) at every step: exit code, bytes, files, processes, runs."""

from __future__ import annotations

import os
import random
import re
import signal
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from gpulayer.protocol.types import JobView
from tests.faults.command_matrix import EXIT_CODE, MATRIX, STEPS, markdown
from tests.faults.matrix import Expect
from tests.support.commands import Bench
from tests.support.deployment import Deployment
from tests.support.processes import end, until

LINES = 12
EXPECTED = "".join(f"line {number}\n" for number in range(LINES))
PAIRS = [(victim, step) for victim, steps in MATRIX.items() for step in steps]
COMBINATIONS: dict[str, list[str]] = {"default": [], "portable": ["--portable"]}
SAMPLE = 4  # cases of each further combination in `make test`; `make test-all` runs every one
DOCS = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"


def cases() -> list[tuple[str, str, int]]:
    """All pairs in the first combination; of the other all, or a sample that is the same every time."""
    chosen: list[tuple[str, str, int]] = []
    everything = os.environ.get("GPULAYER_TEST_ALL") == "1"
    for number, name in enumerate(COMBINATIONS):
        whole = number == 0 or everything
        pairs = PAIRS if whole else sorted(random.Random(name).sample(PAIRS, SAMPLE), key=PAIRS.index)
        chosen += [(name, victim, step) for victim, step in pairs]
    return chosen


def case_id(case: tuple[str, str, int]) -> str:
    combination, victim, step = case
    return f"{combination}-{victim.replace(', ', '+').replace(' ', '-')}-{step}-{STEPS[step][0].replace(' ', '-')}"


class Stage:
    """One deployment with failpoints, used by case after case; one that a failing case left odd is replaced."""

    def __init__(self, combination: str) -> None:
        self.combination = combination
        self.deployment = Deployment(failpoints=True, env={"GPULAYER_EMBEDDED": "0"})
        self.deployment.plane.start()
        worker = self.deployment.worker("alpha", *COMBINATIONS[combination], slots=4, warm=0)
        self.bench = Bench(self.deployment, worker)
        self.runs = self.deployment.folder / "runs.log"
        source = self.deployment.folder / "source"
        source.mkdir()
        (source / "beside.txt").write_text("beside")
        self.bundle = self.bench.bundle(source)

    def submit(self, key: str) -> str:
        """A command that writes line by line, notes its pid, has a file beside it and leaves a file; its job.

        '' where nobody answers: whoever asks again with the same key gets the same job.
        """
        line = (
            f"echo line 0; echo $$ >> {self.runs}; "  # whoever finds its pid may kill it at once
            f"n=1; while [ $n -lt {LINES} ]; do echo line $n; n=$((n+1)); sleep 0.03; done; "
            f"cat beside.txt > made.txt; echo {key} >> made.txt; exit {EXIT_CODE}"
        )
        command = {"bundle": self.bundle, "output_globs": ("made.txt",)}
        try:
            return self.bench.shell(line, command=command, key=key)
        except httpx.TransportError:
            return ""

    def kill(self, victim: str) -> None:
        """Kill the victim."""
        if victim == "control plane":
            self.deployment.plane.kill()
        elif victim == "agent":
            self.bench.worker.kill_agent()
        if victim.startswith("keeper"):
            self.bench.worker.kill_keeper()
        if victim.endswith("command"):
            noted = until(lambda: self.runs.exists() and self.runs.read_text(), "the command to note its pid")
            end(int(noted), signal.SIGKILL)

    def done(self, job: str) -> JobView:
        """The job, once it has ended; the control plane may just be coming back."""

        def look() -> JobView | None:
            try:
                view = self.bench.view(job)
            except (httpx.TransportError, LookupError):
                return None
            return view if view.terminal else None

        return until(look, lambda: f"the job to end: {self.standing(job)}")

    def standing(self, job: str) -> str:
        """How everything stands, for the message of a failed test."""
        processes = "\n".join(f"  {pid} {line}" for pid, line in self.deployment.processes().items())
        keeper = (self.bench.worker.data / "join.log").read_text()[-2000:]
        return f"{self.bench.view(job)}\n{processes}\nagent: {self.bench.worker.log[-3000:]}\nkeeper: {keeper}"


@pytest.fixture(scope="module")
def stages() -> Iterator[list[Stage]]:
    kept: list[Stage] = []
    yield kept
    for stage in kept:
        stage.deployment.close()


@pytest.fixture
def stage(stages: list[Stage], combination: str, request: pytest.FixtureRequest) -> Iterator[Stage]:
    if stages and stages[0].combination != combination:
        stages.pop().deployment.close()
    if not stages:
        stages.append(Stage(combination))
    failed = request.session.testsfailed
    yield stages[0]
    if request.session.testsfailed > failed:
        stages.pop().deployment.close()


@pytest.mark.parametrize(("combination", "victim", "step"), cases(), ids=[case_id(case) for case in cases()])
def test_a_kill_loses_nothing(stage: Stage, victim: str, step: int) -> None:
    expect, key = MATRIX[victim][step], uuid.uuid4().hex
    stage.runs.unlink(missing_ok=True)
    with ThreadPoolExecutor(1) as pool:
        with stage.deployment.failpoint(STEPS[step][1]) as point:
            submitted = pool.submit(stage.submit, key)
            point.await_hit()
            stage.kill(victim)
            point.release()
        job = submitted.result()
    if victim == "control plane":
        stage.deployment.plane.start()
    view = stage.done(job or stage.submit(key))
    check_record(stage, view, expect, made=f"beside{key}\n".encode())
    assert len(stage.runs.read_text().split()) == 1  # it ran once
    stage.bench.until_clean()


def check_record(stage: Stage, view: JobView, expect: Expect, made: bytes) -> None:
    """State, outcome, stream and files as they must be."""
    outcome = view.outcome
    assert outcome is not None
    standing = stage.standing(view.id)
    assert view.state.value == expect.state, standing
    assert (outcome.exit_code, outcome.signal) == (expect.exit_code, expect.signal), standing
    assert expect.problem in outcome.problem, standing
    text = stage.bench.log(view.id).decode()
    if expect.output == "whole":
        assert text == EXPECTED, standing
        assert stage.bench.outputs(view.id) == {"made.txt": made}, standing
    else:
        assert text, standing
        assert EXPECTED.startswith(text), standing
        assert outcome.unmatched == ("made.txt",)


def test_the_documented_table_is_this_one() -> None:
    found = re.search(
        r"<!-- kill matrix of commands -->\n(.*?)\n<!-- /kill matrix of commands -->",
        DOCS.read_text(encoding="utf-8"),
        re.DOTALL,
    )
    assert found is not None
    assert found.group(1) == markdown()
