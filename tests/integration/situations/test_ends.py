"""Situations 10, 16 and 17: no room on the disk, no memory, no time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulayer.protocol.types import State
from tests.support.deployment import Deployment
from tests.support.memory import memory_limit, why_no_limit
from tests.support.notebook import Notebook
from tests.support.processes import until
from tests.support.terminal import Cli

LIMIT_BYTES = 300_000_000
WHY_NOT = why_no_limit()
HOG = "held = bytearray(600_000_000)"


@pytest.fixture
def home() -> Iterator[Deployment]:
    """A control plane of the test's own."""
    with Deployment(env={"GPULAYER_EMBEDDED": "0"}) as deployment:
        deployment.plane.start()
        yield deployment


def test_10_a_workers_disk_is_below_its_reserve(home: Deployment, tmp_path: Path) -> None:
    worker = home.worker("gpu-box-1", "--reserve-bytes", str(10**15), warm=0)
    cli = Cli(tmp_path, home.env)
    until(lambda: home.api.workers()[0].full, "it to say so")
    words = (
        r"takes no work, and output waits: disk below its reserve, [\d.]+ [MG]B free of a reserve of 1,000,000\.0 GB "
        rf"in {re.escape(str(worker.data))}; make room there"
    )
    listed = " ".join(cli.run("resources", "list").stdout.split())
    assert re.search(rf"! {words}", listed), listed
    job = cli.run("submit", "--detach", "--", "true").stdout.strip()
    shown = " ".join(cli.run("job", "list").stdout.split())
    assert re.search(rf"gpu-box-1: {words}", shown), shown
    waiting = home.api.job(job)
    assert waiting.state is State.QUEUED
    home.api.cancel(job)


@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "it can be had")
def test_16_the_machines_memory_is_used_up(home: Deployment, tmp_path: Path) -> None:
    """The kernel's own killer, within a limit on the worker's keeper and all that it starts."""
    worker = home.worker("gpu-box-1", warm=0, env={"GPULAYER_CONTAINMENT": "subreaper"})
    cli, notebook = Cli(tmp_path, home.env), home.notebook()
    figures = r"at a peak of 0\.\d GB, of \d+\.\d GB of RAM there; hold less at a time, or ask for more with --ram SIZE"
    with memory_limit(LIMIT_BYTES) as limited:
        assert limited is not None
        (limited / "cgroup.procs").write_text(str(worker.keeper_pid))
        line = cli.run("submit", "--", "python", "-c", HOG, code=137).stderr.splitlines()[-1]
        form = (
            rf"✗ failed on gpu-box-1 after .* s · out of memory: the machine's OOM killer ended it {figures} · job \w+"
        )
        assert re.fullmatch(form, line), line

        line = cli.run("submit", "--shell", f"python -c '{HOG}'; exit $?", code=137).stderr.splitlines()[-1]
        assert re.search(rf"out of memory: the machine's OOM killer ended a process of it {figures}", line), line

        last = notebook.run(f"%%gpulayer\n{HOG}").traceback
        form = rf"out of memory: the machine's OOM killer ended the cell's kernel {figures}"
        assert re.search(rf"gpulayer: job \w+ failed on gpu-box-1: {form}", last), last
        home.workers.pop("gpu-box-1").stop()


def test_17_a_job_takes_longer_than_its_timeout(deployment: Deployment, cli: Cli, notebook: Notebook) -> None:
    program = "for n in 1 2 3; do echo epoch $n/10 loss 2.31; done; exec sleep 60"
    line = cli.run("submit", "--timeout", "1s", "--shell", program, code=143).stderr.splitlines()[-1]
    form = (
        r"✗ failed on alpha after [\d.]+ s · timed out after 1 s, its --timeout; last line: epoch 3/10 loss 2.31 · .*"
    )
    assert re.fullmatch(form, line), line
    failed = notebook.run("%%gpulayer --timeout 1s\nimport time\nprint('epoch', 3)\nprint('loss')\ntime.sleep(60)")
    last = failed.traceback.splitlines()[-1]
    form = r"gpulayer: job \w+ failed on alpha: timed out after 1 s, its --timeout; last line: loss"
    assert re.fullmatch(form, last), last
    silent = cli.run("submit", "--timeout", "0.2s", "--", "sleep", "60", code=143).stderr.splitlines()[-1]
    assert "timed out after 0.2 s, its --timeout; it had printed nothing" in silent
