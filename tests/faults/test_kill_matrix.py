"""Every victim of the matrix killed (`kill -9`) at every step: state, bytes, processes, and how often the cell ran."""

from __future__ import annotations

import json
import os
import random
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulayer.client.errors import ControlPlaneError
from gpulayer.protocol.failpoints import Failpoint
from gpulayer.protocol.records import Kind, Splitter, decode_json, decode_kernel
from gpulayer.protocol.types import JobView
from tests.faults.matrix import MATRIX, STEPS, Expect, markdown
from tests.support.deployment import Deployment, Worker
from tests.support.notebook import Cell, Notebook
from tests.support.processes import end, until
from tests.support.tree import files_under

LINES = 12
PAIRS = [(victim, step) for victim, steps in MATRIX.items() for step in steps]
OLD_KERNEL = os.environ.get("GPULAYER_TEST_IPYKERNEL6", "")
COMBINATIONS: dict[str, list[str]] = {
    "default": [],  # ipykernel 7, cgroups where they can be had
    "ipykernel6": ["--python", OLD_KERNEL],
    "portable": ["--portable"],
    "unprivileged": [],  # no root: only where GPULAYER_TEST_UNPRIVILEGED says that this is such a user's run
}
UNPRIVILEGED = os.environ.get("GPULAYER_TEST_UNPRIVILEGED") == "1"
SAMPLE = 3  # cases of each further combination in `make test`; `make test-all` runs every one


def cases() -> list[tuple[str, str, int]]:
    """All pairs in the first combination; of the others all, or a sample that is the same every time."""
    chosen: list[tuple[str, str, int]] = []
    everything = os.environ.get("GPULAYER_TEST_ALL") == "1"
    for number, name in enumerate(COMBINATIONS):
        if (name == "unprivileged") != UNPRIVILEGED:
            continue
        whole = number == 0 or everything
        pairs = PAIRS if whole else sorted(random.Random(name).sample(PAIRS, SAMPLE), key=PAIRS.index)
        chosen += [(name, victim, step) for victim, step in pairs]
    return chosen


def case_id(case: tuple[str, str, int]) -> str:
    combination, victim, step = case
    return f"{combination}-{victim.replace(', ', '+').replace(' ', '-')}-{step}-{STEPS[step][0].replace(' ', '-')}"


CASES = cases()
DOCS = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"


class Stage:
    """One deployment with failpoints, used by case after case; one that a failing case left odd is replaced."""

    def __init__(self, combination: str) -> None:
        self.combination = combination
        self.deployment = Deployment(failpoints=True, env={"GPULAYER_EMBEDDED": "0"})
        self.deployment.plane.start()
        self.worker: Worker = self.deployment.worker("alpha", *COMBINATIONS[combination], slots=2)
        self.notebook: Notebook = self.deployment.notebook({"beside.py": "NAME = 'beside'\n"})
        self.runs = self.deployment.folder / "runs.log"

    def cell(self) -> str:
        """A cell that notes that it ran, and prints in small records."""
        return (
            f"%%gpulayer\nimport beside\nwith open({str(self.runs)!r}, 'a') as log:\n    log.write('run\\n')\n"
            f"for number in range({LINES}):\n    print(f'line {{number}}', flush=True)\n"
        )

    def kill(self, victim: str, step: int) -> None:
        """Kill the victim."""
        if victim == "notebook kernel":
            self.notebook.kill()
        elif victim == "control plane":
            self.deployment.plane.kill()
        elif victim == "agent":
            self.worker.kill_agent()
        elif victim == "keeper":
            self.worker.kill_keeper()
        else:
            if victim.startswith("keeper"):
                self.worker.kill_keeper()
            pid = self.kernel_pid()
            assert pid is not None or STEPS[step][0] == "acked"  # only there may it be gone by itself
            if pid is not None:
                end(pid, signal.SIGKILL)

    def standing(self) -> str:
        """How everything stands, for the message of a failed test."""
        files = [path for path in files_under(self.worker.data) if path.suffix == ".json" and "spool" not in path.parts]
        parts = [
            f"jobs: {self.deployment.api.jobs(limit=2)}",
            "processes:",
            *(f"  {pid} {line}" for pid, line in self.deployment.processes().items()),
            "records:",
            *(f"  {path.relative_to(self.worker.data)} {path.read_text()[:300]!r}" for path in sorted(files)),
            f"agent: {self.worker.log[-3000:]}",
            f"keeper: {(self.worker.data / 'join.log').read_text()[-2000:]}",
        ]
        return "\n".join(parts)

    def kernel_pid(self) -> int | None:
        """The process of the kernel that has the cell; None where its agent has ended it, the cell being over."""
        (note,) = (self.worker.data / "attempts").glob("*/kernel.json")
        name = json.loads(note.read_bytes())["kernel"]
        try:
            return json.loads((self.worker.data / "groups" / f"{name}.json").read_bytes())["pid"]
        except FileNotFoundError:
            return None

    def restart(self, victim: str) -> None:
        """Start again what would be started again; agents and keepers start each other."""
        if victim == "control plane":
            self.deployment.plane.start()
        elif victim == "notebook kernel":
            self.notebook.start_kernel()
            assert self.notebook.run("%load_ext gpulayer").ok

    def stream_text(self, job: JobView) -> tuple[str, list[int], int]:
        """The text of the attempt's stream, the kinds of its records, and how many idle records it holds."""
        (path,) = (self.deployment.data / "streams").glob(f"*/{job.attempt}.stream")
        text, kinds, idle = "", [], 0
        for _, kind, body in Splitter().feed(path.read_bytes()):
            kinds.append(kind)
            if kind != Kind.KERNEL:
                assert decode_json(body)
                continue
            parts = decode_kernel(body)
            header, content = json.loads(parts[0]), json.loads(parts[3])
            if header["msg_type"] == "stream":
                text += content["text"]
            idle += content.get("execution_state") == "idle"
        return text, kinds, idle


@pytest.fixture(scope="module")
def stages() -> Iterator[list[Stage]]:
    kept: list[Stage] = []
    yield kept
    for stage in kept:
        stage.deployment.close()


@pytest.fixture
def stage(stages: list[Stage], combination: str, request: pytest.FixtureRequest) -> Iterator[Stage]:
    if combination == "ipykernel6" and not OLD_KERNEL:
        pytest.skip("GPULAYER_TEST_IPYKERNEL6 names no interpreter with ipykernel 6.29; `make test` makes one")
    if stages and stages[0].combination != combination:
        stages.pop().deployment.close()
    if not stages:
        stages.append(Stage(combination))
    failed = request.session.testsfailed
    yield stages[0]
    if request.session.testsfailed > failed:
        stages.pop().deployment.close()


def expected_text(expect: Expect, spooled: str) -> str:
    return "".join(f"line {number}\n" for number in range(LINES)) if expect.output == "whole" else spooled


def spooled_text(worker: Worker) -> str:
    """What stands in the spool of the one attempt, as text."""
    text = ""
    for folder in (worker.data / "attempts").glob("*/spool"):
        data = b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))
        for _, kind, body in Splitter().feed(data):
            parts = decode_kernel(body) if kind == Kind.KERNEL else []
            if parts and json.loads(parts[0])["msg_type"] == "stream":
                text += json.loads(parts[3])["text"]
    return text


@pytest.mark.parametrize(("combination", "victim", "step"), CASES, ids=[case_id(case) for case in CASES])
def test_a_kill_loses_nothing(stage: Stage, victim: str, step: int) -> None:
    expect = MATRIX[victim][step]
    stage.runs.unlink(missing_ok=True)
    jobs_before = {job.id for job in stage.deployment.api.jobs(limit=1000)}
    with stage.deployment.failpoint(STEPS[step][1]) as point:
        cell = stage.notebook.start(stage.cell())
        await_hit(stage, point)
        spooled = spooled_text(stage.worker)
        stage.kill(victim, step)
        point.release()
    stage.restart(victim)
    job = the_job(stage, jobs_before)
    shown = shown_text(stage, victim, cell, job, expect)
    check_record(stage, job, expect, spooled)
    assert shown == expected_text(expect, spooled)
    runs = stage.runs.read_text() if stage.runs.exists() else ""
    assert runs in (("run\n",) if expect.output == "whole" else ("", "run\n"))
    check_nothing_left(stage)


def await_hit(stage: Stage, point: Failpoint) -> None:
    """Wait until somebody stands at the point; where nobody comes, say how everything stands."""
    try:
        point.await_hit()
    except TimeoutError as error:
        raise AssertionError(f"{error}\n{stage.standing()}") from error


def the_job(stage: Stage, before: set[str]) -> JobView:
    """The one job that the cell made, once it has ended."""

    def look() -> JobView | None:
        try:
            new = [job for job in stage.deployment.api.jobs(limit=1000) if job.id not in before]
        except ControlPlaneError:
            return None  # it is just coming back
        assert len(new) <= 1, new
        return new[0] if new and new[0].terminal else None

    return until(look, lambda: f"the job to end: {stage.deployment.api.jobs(limit=2)}\n{stage.worker.log[-3000:]}")


def shown_text(stage: Stage, victim: str, cell: Cell, job: JobView, expect: Expect) -> str:
    """What a person has seen: in the cell, or by attaching from a new kernel."""
    if victim == "notebook kernel":
        attached = stage.notebook.run(f"%gpulayer attach {job.id}")
        assert attached.ok
        return attached.text()
    result = cell.wait()
    assert result.ok == (expect.state == "succeeded"), result.outputs
    assert expect.problem in result.traceback
    return result.text()


def check_record(stage: Stage, job: JobView, expect: Expect, spooled: str) -> None:
    """State, outcome and stream as they must be."""
    assert job.state.value == expect.state
    outcome = job.outcome
    assert outcome is not None
    assert outcome.signal == expect.signal
    assert expect.problem in outcome.problem
    if expect.signal:
        assert outcome.peak_rss_bytes
        assert outcome.peak_rss_bytes > 1_000_000
    text, kinds, idle = stage.stream_text(job)
    assert text == expected_text(expect, spooled)
    assert idle == (1 if expect.state == "succeeded" else 0)
    assert kinds.count(Kind.MARK) == 0


def check_nothing_left(stage: Stage) -> None:
    """No kernel of the attempt, and a free slot; what remains are the fixed processes and warm kernels."""
    until(lambda: stage.deployment.slots_free("alpha") == 2, "the slot to be free")
    until(lambda: not list((stage.worker.data / "attempts").glob("*")), "the attempt's folder to be gone")
    fixed = (
        "gpulayer_server",
        "gpulayer_worker.keeper",
        "gpulayer_worker join",
        "gpulayer_worker agent",
        "ipykernel_launcher",
    )

    def others() -> list[str]:
        lines = [line for pid, line in stage.deployment.processes().items() if pid != os.getpid()]
        return [line for line in lines if not any(part in line for part in fixed)]

    def only_warm() -> bool:
        kernels = [line for line in others() if "kernel/main.py" in line]
        return len(kernels) <= 1 and len(kernels) == len(others())

    until(only_warm, lambda: f"only a warm kernel to be left: {others()}")


@pytest.mark.skipif(not UNPRIVILEGED, reason="for the run of a user without privileges")
def test_an_unprivileged_run_is_one() -> None:
    assert os.geteuid() != 0


def test_the_documented_table_is_this_one() -> None:
    found = re.search(
        r"<!-- kill matrix -->\n(.*?)\n<!-- /kill matrix -->", DOCS.read_text(encoding="utf-8"), re.DOTALL
    )
    assert found is not None
    assert found.group(1) == markdown()
