"""`gl.Client` and `gl.AsyncClient` over real processes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpulayer as gl
from gpulayer.protocol.types import State
from tests.support.deployment import Deployment
from tests.support.processes import until


@pytest.fixture
def client(deployment: Deployment) -> Iterator[gl.Client]:
    with gl.Client(data=deployment.data) as client:
        yield client


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "say.py").write_text("import sys; print(*sys.argv[1:]); open('out.txt', 'w').write('made')")
    return tmp_path / "project"


def test_one_command_from_its_submission_to_its_files(client: gl.Client, project: Path, tmp_path: Path) -> None:
    job = client.submit(
        ["python3", "say.py", "a", "b c"], source=project, outputs=["*.txt"], labels={"t": tmp_path.name}
    )
    assert list(client.stream(job)) == [("stdout", b"a b c\n")]
    outcome = job.result()
    assert (outcome.exit_code, outcome.signal) == (0, None)
    assert (outcome.peak_rss_bytes or 0) > 1_000_000
    assert (job.logs(), job.logs("stdout"), job.logs("stderr")) == ("a b c\n", "a b c\n", "")
    assert [(each.path, each.size) for each in job.outputs()] == [("out.txt", 4)]
    assert job.download(tmp_path / "there").written == [("out.txt", 4)]
    assert job.download(tmp_path / "there").here_already == ["out.txt"]
    assert [view.id for view in client.jobs(label=f"t={tmp_path.name}")] == [job.id]
    assert {worker.name for worker in client.workers() if worker.connected} == {"alpha", "beta"}


def test_a_failure_a_cancelled_one_and_an_impossible_one(client: gl.Client) -> None:
    with pytest.raises(gl.JobFailed, match="failed on alpha: exit code 3") as failed:
        client.submit("echo bad >&2; exit 3").result()
    assert failed.value.job.outcome is not None
    assert failed.value.job.outcome.exit_code == 3
    job = client.submit(["sleep", "600"])
    with pytest.raises(TimeoutError, match=r"has not ended within 0\.1 s"):
        job.result(timeout=0.1)
    job.cancel()
    with pytest.raises(gl.JobCancelled):
        job.result()
    with pytest.raises(gl.JobRejected, match="no machine could run"):
        client.submit(["true"], accelerator="cuda").result()


def test_a_batch_is_one_request_and_one_look_at_each_folder(client: gl.Client, project: Path) -> None:
    commands = [{"argv": ["python3", "say.py", str(number)], "source": project} for number in range(6)]
    jobs = client.submit_batch([*commands, gl.Command(argv="exit 1")])
    states = client.wait(jobs)
    assert [states[job.id] for job in jobs] == [State.SUCCEEDED] * 6 + [State.FAILED]
    assert [job.logs() for job in jobs[:6]] == [f"{number}\n" for number in range(6)]
    with pytest.raises(gl.RequestRefused):
        client.submit_batch([gl.Command(argv=["true"], after=["zzzz"]), gl.Command(argv=["true"])])


def test_the_same_key_is_the_same_job(client: gl.Client, tmp_path: Path) -> None:
    first = client.submit(["true"], key=tmp_path.name)
    assert client.submit(["true"], key=tmp_path.name).id == first.id
    with pytest.raises(gl.RequestRefused) as refused:
        client.submit(["false"], key=tmp_path.name)
    assert refused.value.problem.status == 409


def test_a_large_input_goes_there_and_comes_back(client: gl.Client, tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.write_bytes(os.urandom(20_000_000))
    job = client.submit("cp big copy; echo >> copy", inputs=[(big, "big")], outputs=["copy"])
    job.result()
    job.download(tmp_path / "back")
    assert (tmp_path / "back" / "copy").read_bytes() == big.read_bytes() + b"\n"


def test_a_control_plane_that_is_started_again_is_found_again(
    plane: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPULAYER_EMBEDDED", "0")  # the test starts it again itself
    plane.worker("solo", slots=2, warm=0)
    go = tmp_path / "go"
    with gl.Client(data=plane.data) as client:
        job = client.submit(f"echo up; while ! [ -e '{go}' ]; do sleep 0.02; done; echo down")
        news = client.stream(job)
        assert next(news) == ("stdout", b"up\n")
        plane.plane.kill()
        plane.plane.start()
        assert client.status(job.id).id == job.id
        until(lambda: plane.connected("solo"), "the worker to come back")
        go.touch()
        assert list(news) == [("stdout", b"down\n")]
        assert job.wait().state is State.SUCCEEDED


def test_awaited(deployment: Deployment, project: Path, tmp_path: Path) -> None:
    async def all_of_it() -> None:
        async with gl.AsyncClient(data=deployment.data) as client:
            job = await client.submit(["python3", "say.py", "x"], source=project, outputs=["*.txt"])
            assert [each async for each in client.stream(job)] == [("stdout", b"x\n")]
            assert (await job.result()).exit_code == 0
            assert await job.logs() == "x\n"
            assert (await job.download(tmp_path / "there")).written == [("out.txt", 4)]
            many = await client.submit_batch([gl.Command(argv=["true"]) for _ in range(5)])
            views = await asyncio.gather(*(each.wait() for each in many))
            assert {view.state for view in views} == {State.SUCCEEDED}
            assert set((await client.wait(many)).values()) == {State.SUCCEEDED}
            assert len(await client.jobs(3)) == 3
            assert len([worker for worker in await client.workers() if worker.connected]) == 2
            slow = await client.submit(["sleep", "600"])
            waiting = asyncio.ensure_future(slow.wait())
            await asyncio.sleep(0)
            await slow.cancel()
            assert (await waiting).state is State.CANCELLED
            with pytest.raises(gl.JobCancelled):
                await slow.result()

    asyncio.run(all_of_it())


def test_elsewhere_with_a_token(deployment: Deployment) -> None:
    url, token = deployment.plane.endpoint.url, deployment.plane.endpoint.token
    with gl.Client(url, token) as client:
        assert client.submit("echo hi").wait().state is State.SUCCEEDED
    with gl.Client(url, "nonsense") as client, pytest.raises(gl.ControlPlaneError, match="does not know this token"):
        client.jobs()
    with pytest.raises(gl.ControlPlaneError, match="no token for"):
        gl.Client(url)
