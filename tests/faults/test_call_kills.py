"""Every victim of the calls' matrices killed (`kill -9`) at steps of a map: results, processes, what ran how often.

`make test` runs a sample, always the same; `make test-all` every step.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import select
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpulayer.protocol import failpoints
from tests.faults.calls_matrix import MATRICES, RUNNING, SAMPLE, STEPS, Expect, tables
from tests.support.deployment import Deployment
from tests.support.processes import PATIENCE_S, command_line, end, until

CALLS = 60  # which are one message
EARLY = 10  # results that are accepted before a step in the middle of a map is waited for; more calls than that run
COMBINATIONS: dict[str, list[str]] = {"default": [], "portable": ["--portable"]}
CLIENT = Path(__file__).with_name("calls_client.py")
DOCS = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"


def cases() -> list[tuple[str, str, str, int]]:
    """All of them, or the sample: (combination, kind, victim, step)."""
    everything = os.environ.get("GPULAYER_TEST_ALL") == "1"
    return [
        (combination, kind, victim, step)
        for combination in (COMBINATIONS if everything else ["default"])
        for kind, matrix in MATRICES.items()
        for victim, steps in matrix.items()
        for step in steps
        if everything or step in SAMPLE[kind].get(victim, ())
    ]


def case_id(case: tuple[str, str, str, int]) -> str:
    combination, kind, victim, step = case
    victim, name = victim.replace(", ", "+").replace(" ", "-"), STEPS[step][0].replace(" ", "-")
    return f"{combination}-{kind}-{victim}-{step}-{name}"


class Client:
    """A process that makes calls when it is told to."""

    def __init__(self, script: Path, env: dict[str, str]) -> None:
        command = [sys.executable, str(script)]
        self.process = subprocess.Popen(
            command, env=env, cwd=script.parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        assert self.hear() == {"ready": True}

    def say(self, **asked: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"attach": "", **asked}) + "\n")

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], PATIENCE_S)[0]:
            raise TimeoutError("the client got no answer")
        line = self.process.stdout.readline()
        assert line, "the client ended"
        return json.loads(line)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def close(self) -> None:
        self.process.communicate("", timeout=PATIENCE_S)


class Stage:
    """One deployment with failpoints, used by case after case; one that a failing case left odd is replaced."""

    def __init__(self, combination: str) -> None:
        self.combination = combination
        self.deployment = Deployment(failpoints=True, env={"GPULAYER_EMBEDDED": "0"})
        self.deployment.plane.start()
        self.worker = self.deployment.worker("alpha", *COMBINATIONS[combination], slots=2, warm=0)
        self.folder = self.deployment.folder / "client"
        self.folder.mkdir()
        shutil.copy(CLIENT, self.folder / "script.py")
        self.runs = self.deployment.folder / "runs.log"
        self.gate = self.deployment.folder / "gate"
        self.gate.touch()
        self.client = self.new_client()

    def new_client(self) -> Client:
        return Client(self.folder / "script.py", self.deployment.env)

    def start(self, kind: str) -> None:
        """Begin a map of calls that note that they run."""
        self.client.say(kind=kind, folder=str(self.deployment.folder), failpoints=failpoints.__file__, count=CALLS)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Inside, calls from the twentieth on wait in the middle."""
        with self.gate.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    # ---------------------------------------------------------------- looking

    def noted(self) -> list[tuple[int, int]]:
        """What ran, in the order of its beginning: index and process."""
        lines = self.runs.read_text().splitlines() if self.runs.exists() else []
        return [(int(index), int(pid)) for index, pid in map(str.split, lines)]

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Of the control plane's store, also while it stands somewhere."""
        with closing(sqlite3.connect(f"file:{self.deployment.data / 'store.db'}?mode=ro", uri=True)) as store:
            return store.execute(query).fetchall()

    def maps(self) -> list[str]:
        """The ids of all maps, the newest last."""
        return [f"{job}.{k}" for job, k in self.rows("SELECT jobs.id, k FROM maps JOIN jobs USING (n) ORDER BY n, k")]

    def accepted(self) -> set[int]:
        """The calls of the newest map that have results on the disk."""
        rows = self.rows("SELECT first, count FROM map_results WHERE n = (SELECT max(n) FROM maps)")
        return {index for first, count in rows for index in range(first, first + count)}

    def runner(self) -> int:
        """A process that runs calls: the last that began one and lives."""
        living = [pid for _, pid in self.noted() if "runner/main.py" in command_line(pid)]
        return living[-1]

    def standing(self) -> str:
        """How everything stands, for the message of a failed test."""
        processes = "\n".join(f"  {pid} {line}" for pid, line in self.deployment.processes().items())
        keeper = (self.worker.data / "join.log").read_text()[-2000:]
        maps = self.rows("SELECT n, k, state, total, taken, done FROM maps ORDER BY n, k")
        return (
            f"maps: {maps[-2:]}\nran: {self.noted()}\n{processes}\nplane: {self.deployment.plane.log[-3000:]}\n"
            f"agent: {self.worker.log[-3000:]}\nkeeper: {keeper}"
        )

    # ---------------------------------------------------------------- killing

    def kill(self, victim: str, hit: int) -> int:
        """Kill the victim, while the process `hit` stands at the point; the runner's pid, 0 where it is not one."""
        if victim == "control plane":
            self.deployment.plane.kill()
        elif victim == "agent":
            self.worker.kill_agent()
        elif victim == "client":
            self.client.kill()
        if not victim.endswith("runner"):
            if victim == "keeper":
                self.worker.kill_keeper()
            return 0
        pid = hit if "runner/main.py" in command_line(hit) else self.runner()
        if victim.startswith("keeper"):
            self.worker.kill_keeper()
        end(pid, signal.SIGKILL)
        return pid

    def until_free(self, kind: str, *, let_go: bool) -> None:
        """End what waits for further calls, unless who made it has let it go: everything is as before it."""
        deployment = self.deployment
        if not let_go:
            deployment.api.cancel(self.maps()[-1].partition(".")[0])
        until(lambda: deployment.slots_free("alpha") == 2, lambda: f"the slots to be free: {self.standing()}")
        folder = self.worker.data / "attempts"
        until(lambda: not list(folder.glob("*")), lambda: f"the attempt's folder to be gone: {self.standing()}")
        fixed = (
            "gpulayer_server",
            "gpulayer_worker.keeper",
            "gpulayer_worker join",
            "gpulayer_worker agent",
            "script.py",
        )

        def others() -> list[str]:
            return [line for line in deployment.processes().values() if not any(part in line for part in fixed)]

        until(lambda: not others(), lambda: f"no process to be left: {others()}")

    def close(self) -> None:
        self.client.close()
        self.deployment.close()


@pytest.fixture(scope="module")
def stages() -> Iterator[list[Stage]]:
    kept: list[Stage] = []
    yield kept
    for stage in kept:
        stage.close()


@pytest.fixture
def stage(stages: list[Stage], combination: str, request: pytest.FixtureRequest) -> Iterator[Stage]:
    if stages and stages[0].combination != combination:
        stages.pop().close()
    if not stages:
        stages.append(Stage(combination))
    failed = request.session.testsfailed
    yield stages[0]
    if request.session.testsfailed > failed:
        stage = stages.pop()
        stage.client.kill()
        stage.deployment.close()


@pytest.mark.parametrize(("combination", "kind", "victim", "step"), cases(), ids=[case_id(case) for case in cases()])
def test_a_kill_loses_no_call_and_repeats_none(stage: Stage, kind: str, victim: str, step: int) -> None:
    expect, before = MATRICES[kind][victim][step], len(stage.maps())
    stage.runs.unlink(missing_ok=True)
    with at_step(stage, kind, step) as point:
        hit = await_hit(stage, point)
        accepted = stage.accepted() if len(stage.maps()) > before else set[int]()
        ran_before = [index for index, _ in stage.noted()]
        killed = stage.kill(victim, hit)
        point.release()
    if victim == "control plane":
        stage.deployment.plane.start()
    if victim == "client":
        stage.client = stage.new_client()
        stage.client.say(attach=until(lambda: stage.maps()[before:], "the map to be committed")[-1])
    answer = heard(stage)
    check_results(stage, kind, answer, expect)
    check_runs(stage, expect, killed, accepted, ran_before)
    stage.until_free(kind, let_go=kind == "object" and victim != "client")


@contextmanager
def at_step(stage: Stage, kind: str, step: int) -> Iterator[failpoints.Failpoint]:
    """The map has begun, and its step's point is armed: one in the middle of a map once others have results."""
    point = stage.deployment.failpoint(STEPS[step][1])
    if point.name == RUNNING or step < 6:
        with point:
            stage.start(kind)
            yield point
        return
    with stage.held():
        stage.start(kind)
        until(lambda: len(stage.accepted()) >= EARLY and len(stage.noted()) > 20, stage.standing)
        point.arm()
    try:
        yield point
    finally:
        point.release()


def await_hit(stage: Stage, point: failpoints.Failpoint) -> int:
    """Wait until somebody stands at the point; where nobody comes, say how everything stands."""
    try:
        return point.await_hit()
    except TimeoutError as error:
        raise AssertionError(f"{error}\n{stage.standing()}") from error


def heard(stage: Stage) -> dict[str, Any]:
    """What the map gave in the end."""
    try:
        return stage.client.hear()
    except (TimeoutError, AssertionError) as error:
        raise AssertionError(f"{error}\n{stage.standing()}") from error


def check_results(stage: Stage, kind: str, answer: dict[str, Any], expect: Expect) -> None:
    """Every result once, in order, of a call that ran in the process that it names."""
    results: list[list[int]] = answer["results"]
    assert [index for index, _, _ in results] == list(range(len(results) if expect.gone else CALLS)), stage.standing()
    assert [calls for _, calls, _ in results] == [index + 1 if kind == "object" else 0 for index, _, _ in results]
    assert {(index, pid) for index, _, pid in results} <= set(stage.noted())
    assert ("the object is gone" in answer["error"]) == expect.gone, f"{answer['error']}\n{stage.standing()}"


def check_runs(stage: Stage, expect: Expect, killed: int, accepted: set[int], ran_before: list[int]) -> None:
    """No call ran twice but those that a killed runner had, and of these none whose result was accepted before."""
    noted, standing = stage.noted(), stage.standing()
    runs = [index for index, _ in noted]
    assert [index for index in accepted if runs.count(index) != ran_before.count(index)] == [], standing
    twice = {index for index in runs if runs.count(index) > 1}
    if not expect.again:
        assert twice == set(), standing
    assert twice <= {index for index, pid in noted if pid == killed}, standing
    assert twice <= {index for index, pid in noted if pid != killed}, standing
    assert all(runs.count(index) == 2 for index in twice), standing


def test_the_documented_tables_are_these() -> None:
    found = re.search(
        r"<!-- kill matrix of calls -->\n(.*?)\n<!-- /kill matrix of calls -->",
        DOCS.read_text(encoding="utf-8"),
        re.DOTALL,
    )
    assert found is not None
    assert found.group(1) == tables()


def test_the_sample_meets_every_victim_and_every_step() -> None:
    sampled = SAMPLE["function"]
    assert sampled.keys() == MATRICES["function"].keys()
    assert all(
        set(steps) <= MATRICES[kind][victim].keys() for kind, each in SAMPLE.items() for victim, steps in each.items()
    )
