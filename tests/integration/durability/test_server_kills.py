"""`kill -9` of the control plane: no accepted job is lost, none runs twice, no byte of output is missing."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.deployment import Deployment
from tests.support.processes import until


@pytest.fixture
def deployment() -> Iterator[Deployment]:
    with Deployment(failpoints=True) as made:
        made.plane.start()
        yield made


def command(line: str, **more: Any) -> dict[str, Any]:
    return {"command": {"argv": ["/bin/sh", "-c", line]}, **more}


class Batch:
    """Jobs that are submitted together, again and again until somebody says that they are taken."""

    def __init__(self, deployment: Deployment, *specs: dict[str, Any]):
        self._deployment = deployment
        run = uuid.uuid4().hex
        self.body = {"jobs": [{"key": f"{run}-{n}", "spec": spec} for n, spec in enumerate(specs)]}

    def submit(self) -> list[str] | None:
        """The ids; None where nobody answered."""
        try:
            answer = self._deployment.request("POST", "/v1/jobs/batch", json=self.body)
        except httpx.HTTPError:
            return None
        assert answer.status_code == 201, answer.text
        return answer.json()["jobs"]


def states(deployment: Deployment, names: list[str]) -> dict[str, str]:
    answer = deployment.request("POST", "/v1/jobs/states", json={"jobs": names})
    assert answer.status_code == 200, answer.text
    return answer.json()


def all_jobs(deployment: Deployment) -> list[str]:
    return [job.id for job in deployment.api.jobs(limit=1000)]


@pytest.mark.parametrize("size", [1, 300])
def test_a_batch_whose_answer_was_seen_is_there_whole_after_a_kill(deployment: Deployment, size: int) -> None:
    for _ in range(3):
        batch = Batch(deployment, *(command("true", name=f"n{n}") for n in range(size)))
        names = batch.submit()
        deployment.plane.kill()  # at once
        deployment.plane.start()
        assert names is not None
        assert set(states(deployment, names)) == set(names)
        assert batch.submit() == names


def test_a_batch_that_was_cut_by_a_kill_is_completed_with_each_job_once_when_it_comes_again(
    deployment: Deployment,
) -> None:
    batch = Batch(deployment, *(command("true", name=f"n{n}") for n in range(400)))
    answers: list[list[str] | None] = []
    with deployment.failpoint("server.committed") as point:
        thread = threading.Thread(target=lambda: answers.append(batch.submit()))
        thread.start()
        point.await_hit()  # rows are on disk, and nobody was told
        deployment.plane.kill()
        point.release()
    thread.join()
    assert answers == [None]
    deployment.plane.start()
    there = all_jobs(deployment)  # it may be taken in parts
    names = batch.submit()
    assert names is not None
    assert len(set(names)) == 400
    assert set(there) <= set(names)
    assert sorted(all_jobs(deployment)) == sorted(names)


def test_commands_run_once_and_their_output_is_whole_however_often_it_is_killed(deployment: Deployment) -> None:
    deployment.worker("alpha", slots=3, warm=0)
    ran = deployment.folder / "ran"
    ran.mkdir()
    line = (
        f"echo run >> {ran}/$GPULAYER_JOB; i=0; while [ $i -lt 400 ]; do echo line $i; echo error $i >&2; "
        "i=$((i+1)); sleep 0.004; done"
    )
    batch = Batch(deployment, *(command(line) for _ in range(6)), *(command("true") for _ in range(30)))
    names = batch.submit()
    assert names is not None
    kills = 0
    while True:
        deployment.plane.kill()
        deployment.plane.start()
        kills += 1
        now = states(deployment, names)
        assert set(now) == set(names), "an accepted job is gone"
        if all(state == "succeeded" for state in now.values()):
            break
        assert set(now.values()) <= {"queued", "assigned", "running", "unreachable", "succeeded"}
        progress = sum(state == "succeeded" for state in now.values())
        if kills >= 8:
            until(lambda: all(state == "succeeded" for state in states(deployment, names).values()), "all to end")
        else:
            until(lambda seen=progress: _went_on(deployment, names, seen), "something to end")
    assert kills >= 2
    for name in names[:6]:
        check_output(deployment, name)
        assert Path(ran / name).read_text() == "run\n"
    attempts = [deployment.request("GET", f"/v1/jobs/{name}/attempts").json() for name in names]
    assert [len(each) for each in attempts] == [1] * 36


def _went_on(deployment: Deployment, names: list[str], seen: int) -> bool:
    return sum(state == "succeeded" for state in states(deployment, names).values()) > seen


def check_output(deployment: Deployment, name: str) -> None:
    for stream, word in (("stdout", "line"), ("stderr", "error")):
        got = deployment.request("GET", f"/v1/jobs/{name}/logs?stream={stream}").text
        assert got == "".join(f"{word} {n}\n" for n in range(400))
    last = deployment.request("GET", f"/v1/jobs/{name}/logs?stream=stdout&tail=9").text
    assert last == "line 399\n"
