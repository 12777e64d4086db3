"""Commands outlive agents and control planes; what a worker took along runs again where it may."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpulayer.protocol.types import State
from tests.support.commands import Bench
from tests.support.deployment import Deployment, Worker
from tests.support.processes import end, until


def counting(until_file: Path, runs: Path) -> str:
    """A program that notes that it ran, and counts until a file is there."""
    loop = f"i=0; until [ -e {until_file} ]; do i=$((i+1)); echo line $i; sleep 0.01; done"
    return f"echo run >> {runs}; {loop}; echo end $i; exit 5"


def whole(log: bytes) -> bool:
    """Whether every line is there, once, in its order."""
    *lines, end = log.decode().splitlines()
    return lines == [f"line {n}" for n in range(1, len(lines) + 1)] and end == f"end {len(lines)}"


def kill_agent(worker: Worker, deployment: Deployment) -> None:
    worker.kill_agent()


def kill_plane(worker: Worker, deployment: Deployment) -> None:
    deployment.plane.kill()
    deployment.plane.start()


def kill_both(worker: Worker, deployment: Deployment) -> None:
    deployment.plane.kill()
    worker.kill_agent()
    deployment.plane.start()


@pytest.mark.parametrize("kill", [kill_agent, kill_plane, kill_both])
def test_a_command_goes_on_and_its_output_is_whole(
    bench: Bench, tmp_path: Path, kill: Callable[[Worker, Deployment], None]
) -> None:
    go, runs = tmp_path / "go", tmp_path / "runs"
    job = bench.shell(counting(go, runs))
    until(lambda: b"line 5\n" in bench.log(job), "some lines")
    kill(bench.worker, bench.deployment)
    seen = len(bench.log(job))
    until(lambda: len(bench.log(job)) > seen + 50, "more lines")
    go.touch()
    view = bench.done(job)
    assert view.outcome is not None
    assert view.outcome.exit_code == 5
    assert whole(bench.log(job))
    assert runs.read_text() == "run\n"


def test_what_ended_while_no_agent_was_there_is_known(bench: Bench, tmp_path: Path) -> None:
    go, runs = tmp_path / "go", tmp_path / "runs"
    job = bench.shell(counting(go, runs), command={"output_globs": ("*.txt",)})
    until(lambda: b"line 5\n" in bench.log(job), "some lines")
    go.touch()
    bench.worker.kill_agent()
    view = bench.done(job)
    assert view.outcome is not None
    assert (view.outcome.exit_code, view.outcome.problem, view.outcome.unmatched) == (5, "", ("*.txt",))
    assert view.outcome.peak_rss_bytes
    assert whole(bench.log(job))
    assert runs.read_text() == "run\n"


def test_a_cancel_reaches_a_command_that_an_agent_before_began(bench: Bench, tmp_path: Path) -> None:
    go, runs = tmp_path / "go", tmp_path / "runs"
    job = bench.shell(counting(go, runs))
    until(lambda: b"line 5\n" in bench.log(job), "some lines")
    bench.worker.kill_agent()
    bench.cancel(job)
    assert bench.done(job).state is State.CANCELLED


def test_a_time_limit_counts_from_the_begin_across_agents(bench: Bench, tmp_path: Path) -> None:
    job = bench.shell(counting(tmp_path / "never", tmp_path / "runs"), timeout_s=2)
    until(lambda: b"line 5\n" in bench.log(job), "some lines")
    bench.worker.kill_agent()
    view = bench.done(job)
    assert view.outcome is not None
    assert view.outcome.problem.startswith("timed out after 2 s, its --timeout; last line: line ")
    assert view.outcome.wall_s is not None
    assert 2 <= view.outcome.wall_s < 30


def test_a_command_outlives_its_keeper_and_its_output_is_whole(bench: Bench, tmp_path: Path) -> None:
    go, runs = tmp_path / "go", tmp_path / "runs"
    job = bench.shell(counting(go, runs))
    until(lambda: b"line 5\n" in bench.log(job), "some lines")
    bench.worker.kill_keeper()
    seen = len(bench.log(job))
    until(lambda: len(bench.log(job)) > seen + 50, "more lines")
    go.touch()
    view = bench.done(job)
    assert view.state is State.FAILED
    assert view.outcome is not None
    assert view.outcome.problem.startswith("exit unknown: the keeper had died")
    assert whole(bench.log(job))
    assert runs.read_text() == "run\n"
    after = bench.run("exit 6")  # and the next keeper works
    assert after.outcome is not None
    assert after.outcome.exit_code == 6


@pytest.fixture
def lost() -> Iterator[Bench]:
    """A deployment whose worker goes, with its processes, and whose control plane soon counts it as lost."""
    with Deployment(env={"GPULAYER_EMBEDDED": "0"}) as deployment:
        deployment.data.mkdir(mode=0o700)
        (deployment.data / "settings.json").write_text(json.dumps({"lost_after_s": 5}))
        deployment.plane.start()
        yield Bench(deployment, deployment.worker("alpha", slots=4, warm=0))


def test_a_command_with_retries_runs_again_elsewhere(lost: Bench, tmp_path: Path) -> None:
    up, go = tmp_path / "up", tmp_path / "go"
    job = lost.shell(f"echo $GPULAYER_ATTEMPT >> {up}; until [ -e {go} ]; do sleep 0.02; done", retries=1)
    until(up.exists, "the program to be up")
    os.kill(lost.worker.keeper_pid, signal.SIGSTOP)  # a machine that is cut off: nothing of it says a word
    os.kill(lost.worker.agent_pid, signal.SIGSTOP)
    lost.deployment.worker("beta", slots=4, warm=0)
    until(lambda: len(up.read_text().splitlines()) == 2, "the second attempt")
    go.touch()
    view = lost.done(job)
    assert (view.state, view.attempts, view.worker) == (State.SUCCEEDED, 2, "beta")
    assert len(set(up.read_text().splitlines())) == 2
    for pid in (lost.worker.keeper_pid, lost.worker.agent_pid):
        os.kill(pid, signal.SIGCONT)
    until(lambda: not lost.left(), lambda: f"the first attempt's program to be ended: {lost.left()}")


def test_a_program_that_died_with_its_whole_worker_has_an_unknown_end(lost: Bench, tmp_path: Path) -> None:
    up = tmp_path / "up"
    job = lost.shell(f"echo $$ >> {up}; exec sleep 3600")
    pid = int(until(lambda: up.exists() and up.read_text(), "the program to be up"))
    keeper, agent = lost.worker.keeper_pid, lost.worker.agent_pid
    os.kill(agent, signal.SIGSTOP)
    for each in (keeper, pid, agent):
        end(each, signal.SIGKILL)
    assert lost.worker.process is not None
    lost.worker.process.wait(30)
    lost.worker.start()
    view = lost.done(job)
    assert view.state is State.FAILED
    assert view.outcome is not None
    assert view.outcome.problem.startswith("exit unknown")
    assert up.read_text() == f"{pid}\n"


@pytest.fixture
def portable() -> Iterator[Bench]:
    with Deployment(env={"GPULAYER_EMBEDDED": "0"}) as deployment:
        deployment.plane.start()
        bench = Bench(deployment, deployment.worker("alpha", "--portable", slots=4, warm=0))
        yield bench
        bench.until_clean()


def test_all_of_it_works_with_nothing_that_only_linux_has(portable: Bench, tmp_path: Path) -> None:
    go, runs = tmp_path / "go", tmp_path / "runs"
    job = portable.shell(f"(setsid sleep 3600 > /dev/null 2>&1 &); {counting(go, runs)}")
    until(lambda: b"line 5\n" in portable.log(job), "some lines")
    portable.worker.kill_agent()
    until(lambda: b"line 50\n" in portable.log(job), "more lines")
    go.touch()
    view = portable.done(job)
    assert view.outcome is not None
    assert view.outcome.exit_code == 5
    assert whole(portable.log(job))
    assert runs.read_text() == "run\n"
    assert os.path.exists(go)


def test_a_worker_whose_disk_is_low_takes_no_work_and_says_so(tmp_path: Path) -> None:
    with Deployment(env={"GPULAYER_EMBEDDED": "0"}) as deployment:
        deployment.plane.start()
        bench = Bench(deployment, deployment.worker("alpha", "--reserve-bytes", str(10**15), slots=4, warm=0))
        job = bench.shell(f"echo ran >> {tmp_path}/ran")
        until(lambda: bench.view(job).reasons, "the reason why it waits")
        (reason,) = bench.view(job).reasons
        assert (reason.code, reason.temporary) == ("disk", True)
        assert "disk below its reserve" in reason.text
        assert str(bench.worker.data) in reason.text
        deployment.worker("beta", slots=4, warm=0)
        view = bench.done(job)
        assert (view.state, view.worker) == (State.SUCCEEDED, "beta")
        assert (tmp_path / "ran").read_text() == "ran\n"
