"""Four machines on a network: `gpulayer up` on one, its line pasted on three; then cables and machines fail."""

from __future__ import annotations

import json
import os
import re
import shlex
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.net.hosts import Host, Network, why_not
from tests.support.processes import PATIENCE_S, until

LOST_AFTER_S = 9.0  # a worker ends what has retries after 0.8 of it: far longer than the cut and what follows it
LINES = 40
_LINE = re.compile(r"^gpulayer join (.*)$", re.MULTILINE)
_UP = "import sys; from gpulayer_server.commands.up import main; sys.exit(main(sys.argv[1:]))"
_JOIN = "import sys; from gpulayer_worker.__main__ import join_main; sys.exit(join_main(sys.argv[1:]))"


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    """The control plane and three workers; every machine with its own address."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with Network("plane", "box1", "box2", "box3") as network:
        plane = network["plane"]
        (plane.home / "data").mkdir(mode=0o700)
        (plane.home / "data" / "settings.json").write_text(json.dumps({"lost_after_s": LOST_AFTER_S}))
        plane.start("-c", _UP, "--data", str(plane.home / "data"), "--no-worker", log="up.log")
        for number, name in enumerate(("box1", "box2", "box3")):
            join(network[name], join_line(plane, number))
        until(lambda: len(connected(network)) == 3, lambda: f"three machines: {connected(network)}\n{up_log(network)}")
        yield network


def up_log(network: Network) -> str:
    return network["plane"].said("up.log")


def join_line(plane: Host, number: int) -> list[str]:
    """The words of the line that it shows for the machine of this number: the next comes when that was used."""
    lines = until(
        lambda: _LINE.findall(plane.said("up.log"))[number:], lambda: f"line {number}:\n{plane.said('up.log')}"
    )
    return shlex.split(lines[0])


def join(box: Host, line: list[str]) -> None:
    data = box.home / "w"
    words = ["--data", str(data), "--name", box.name, "--slots", "4", "--warm", "0", "--reserve-bytes", "0"]
    box.start("-c", _JOIN, *line, *words, log="join.log")


def workers(network: Network) -> list[dict[str, Any]]:
    return network.ask(network["plane"], "GET", "/v1/workers")


def connected(network: Network) -> list[str]:
    return sorted(worker["name"] for worker in workers(network) if worker["connected"])


def submit(network: Network, key: str, script: str, *, worker: str | None = None, retries: int = 0) -> str:
    spec: dict[str, Any] = {"command": {"argv": ["bash", "-c", script]}, "retries": retries, "name": key}
    if worker is not None:
        spec["requirements"] = {"worker": worker}
    return network.ask(network["plane"], "POST", "/v1/jobs", {"key": key, "spec": spec})["id"]


def view(network: Network, job: str) -> dict[str, Any]:
    return network.ask(network["plane"], "GET", f"/v1/jobs/{job}")


def log_of(network: Network, job: str) -> str:
    return network.ask(network["plane"], "GET", f"/v1/jobs/{job}/logs")


def script(runs: Path, pause_s: float) -> str:
    """Notes that it ran, and where, and writes numbered lines."""
    return f"echo $$ >> {runs}; for n in $(seq {LINES}); do echo line $n; sleep {pause_s}; done"


WHOLE = "".join(f"line {number}\n" for number in range(1, LINES + 1))


def succeeded(network: Network, job: str) -> bool:
    state = view(network, job)
    assert state["state"] not in ("failed", "cancelled", "rejected", "lost"), state
    return state["state"] == "succeeded"


def ends_well(network: Network, job: str) -> None:
    until(lambda: succeeded(network, job), lambda: f"it to end: {view(network, job)}", timeout_s=2 * PATIENCE_S)


def test_the_machines_have_joined_by_tls_with_a_pin(network: Network) -> None:
    plane = network["plane"]
    assert connected(network) == ["box1", "box2", "box3"]
    for name in ("box1", "box2", "box3"):
        kept = json.loads((network[name].home / "w" / "credential.json").read_bytes())
        assert kept["url"] == f"https://{plane.address}:8443"  # the address of its default route
        assert kept["fingerprint"] in up_log(network)
        assert kept["certificate"].startswith("-----BEGIN CERTIFICATE-----")
        until(lambda name=name: f"● {name} joined" in up_log(network), f"the word on {name}")
    for host in network.hosts.values():
        for pid in host.pids():
            line = Path(f"/proc/{pid}/cmdline").read_bytes() if Path(f"/proc/{pid}").exists() else b""
            assert b"gl-join-" not in line


@pytest.mark.parametrize(
    "cut_s",
    [
        2.0,
        pytest.param(
            30.0,
            marks=[
                pytest.mark.combination,
                pytest.mark.skipif(os.environ.get("GPULAYER_TEST_ALL") != "1", reason="takes a minute: make test-all"),
            ],
        ),
    ],
)
def test_a_cable_that_is_pulled_in_mid_run_loses_nothing(network: Network, cut_s: float) -> None:
    """No job is lost, none runs twice, and every log is whole; the work goes on meanwhile."""
    box = network["box1"]
    pause_s = (cut_s + 2.0) / LINES
    jobs: dict[str, Path] = {}
    for number, name in enumerate(("box1", "box1", "box1", "box2", "box3")):
        runs = network.folder / f"runs-{cut_s}-{number}"
        retries = number % 2 if cut_s < LOST_AFTER_S else 0  # a longer cut moves those that may move
        job = submit(network, f"cut {cut_s} {number}", script(runs, pause_s), worker=name, retries=retries)
        jobs[job] = runs
    first = next(iter(jobs))
    until(lambda: "line 3\n" in log_of(network, first), "the first lines")
    box.unplug()
    threading.Event().wait(cut_s)  # the length of the cut is what is tested
    box.plug()
    for job in jobs:
        ends_well(network, job)
    for job, runs in jobs.items():
        assert log_of(network, job) == WHOLE
        assert len(runs.read_text().splitlines()) == 1, "it ran twice"
    assert connected(network) == ["box1", "box2", "box3"]


def test_a_machine_that_dies_gives_its_tasks_to_others(network: Network) -> None:
    """Those with retries; one without is out of reach until a person gives it up, and says so."""
    runs = network.folder / "runs-dies"
    again = f"echo $GPULAYER_ATTEMPT >> {runs}; test $(wc -l < {runs}) -gt 1 || sleep 600; echo done"
    moving = submit(network, "moves on", again, retries=2)
    until(lambda: view(network, moving)["state"] == "running", "it to run")
    victim = network[view(network, moving)["worker"]]
    staying = submit(network, "stays", "sleep 600", worker=victim.name)
    until(lambda: view(network, staying)["state"] == "running", "the other one to run")
    victim.kill()
    ends_well(network, moving)
    assert view(network, moving)["worker"] != victim.name
    assert len(runs.read_text().splitlines()) == 2
    assert log_of(network, moving).endswith("done\n")
    assert view(network, staying)["state"] == "unreachable"
    until(lambda: f"○ {victim.name} is out of reach" in up_log(network), lambda: up_log(network))
    network.ask(network["plane"], "POST", f"/v1/jobs/{staying}/cancel", {"give_up": True})
    until(lambda: view(network, staying)["state"] in ("failed", "cancelled", "lost"), "the given-up one to end")
