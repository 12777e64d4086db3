"""Where a job would run, why it would not, and the machines: against real workers."""

from __future__ import annotations

import json
import os
import signal

import gpulayer as gl
from gpulayer.protocol.types import Placement
from tests.support.deployment import Deployment
from tests.support.notebook import Notebook
from tests.support.processes import PATIENCE_S, until
from tests.support.terminal import Cli


def table(text: str) -> dict[str, list[str]]:
    """The reasons of each worker, of lines as `gpulayer explain` prints them."""
    rows: dict[str, list[str]] = {}
    name = ""
    for line in text.splitlines():
        if line.startswith("  ") and line[2] != " ":
            name, _, reason = line.strip().partition("  ")
            rows[name] = [reason.strip()]
        elif line.startswith("   "):
            rows[name].append(line.strip())
    return rows


def test_where_it_would_run(cli: Cli) -> None:
    said = cli.run("explain", "--worker", "alpha")
    assert said.stdout.splitlines()[0] == "scheduling: eligible now, it would run on alpha"
    rows = table(said.stdout)
    assert rows["alpha"] == ["eligible"]
    assert rows["beta"] == ["is not 'alpha'"]


def test_every_reason_of_every_machine(cli: Cli) -> None:
    said = cli.run("explain", "--accelerator", "cuda", "--devices", "2", "--cpus", "5000", "--os", "darwin", code=69)
    lines = said.stdout.splitlines()
    assert lines[0] == "scheduling: no eligible worker"
    assert any(line.startswith("nearest: ") for line in lines)
    for name in ("alpha", "beta"):
        reasons = " ".join(table(said.stdout)[name])
        for word in ("2 usable cuda devices", "5000 cores", "darwin"):
            assert word in reasons
    told = json.loads(cli.run("explain", "--accelerator", "cuda", "--cpus", "5000", "--json", code=69).stdout)
    assert told["placement"] == "rejected"
    assert {each["worker"] for each in told["reasons"]} >= {"alpha", "beta"}
    [cpu] = [each for each in told["reasons"] if each["worker"] == "alpha" and each["code"] == "cpu"]
    assert cpu["wanted"] == 5000
    assert cpu["found"] < 5000


def test_a_rejected_job_shows_the_same_table(cli: Cli) -> None:
    options = ("--cpus", "5000", "--worker", "alpha")
    explained = cli.run("explain", *options, code=69).stdout.splitlines()
    said = cli.run("submit", *options, "--", "true", code=69)
    lines = said.stderr.splitlines()
    assert lines[0].startswith("✗ no eligible worker · job ")
    assert [line for line in explained if "5000 cores" in line] == [line for line in lines if "5000 cores" in line]
    assert explained[-1] == lines[-1]
    job = lines[0].split()[-1]
    shown = cli.run("job", "show", job).stdout
    assert lines[-1] in shown
    assert "needs      5000 cores · on alpha" in shown


def test_what_no_machine_can_take_waits_where_it_is_told_to(cli: Cli) -> None:
    job = cli.run("submit", "-d", "--cpus", "5000", "--wait-for-worker", "--", "true").stdout.strip()
    try:
        shown = cli.run("job", "show", job).stdout
        assert shown.startswith("○ waiting")
        assert "alpha" in table(shown)
    finally:
        cli.run("job", "cancel", job)


def test_several_machines_at_once(cli: Cli) -> None:
    line = 'echo "$GPULAYER_NODE_RANK of $GPULAYER_NODES"'
    job = cli.run("submit", "-d", "--nodes", "2", "--shell", line).stdout.strip()
    cli.run("job", "wait", job)
    told = json.loads(cli.run("job", "show", job, "--json").stdout)
    assert {task["worker"] for task in told["task_records"]} == {"alpha", "beta"}
    logs = sorted(cli.run("job", "logs", job, "--index", str(n)).stdout for n in range(2))
    assert logs == ["0 of 2\n", "1 of 2\n"]
    assert "9 machines" in cli.run("explain", "--nodes", "9", code=69).stdout


def test_a_bad_option_is_one_line(cli: Cli) -> None:
    for command in (("explain",), ("submit", "-d")):
        tail = ("--", "true") if command[0] == "submit" else ()
        line = cli.fails(*command, "--framework", "pytorch", *tail, code=2)
        assert line.startswith("gpulayer: --framework: unknown framework 'pytorch'")


def test_from_a_program(deployment: Deployment) -> None:
    with gl.Client(data=deployment.plane.data) as client:
        explanation = client.explain(worker="beta")
        assert (explanation.placement, explanation.chosen) == (Placement.PLACED, ("beta",))
        assert "beta" in repr(explanation)
        assert not client.explain(cpus=5000)


def test_in_a_notebook(notebook: Notebook) -> None:
    result = notebook.run("%gpulayer explain --cpus 5000")
    assert result.ok
    assert result.text().startswith("scheduling: no eligible worker\n")
    cell = notebook.run("%%gpulayer --cpus 5000 --worker alpha\n1")
    assert not cell.ok
    assert "needs 5000 cores" in str(cell.outputs)
    assert "nearest: " in str(cell.outputs)


def test_machines_as_they_fare(cli: Cli) -> None:
    def sampled() -> bool:
        machines = json.loads(cli.run("resources", "list", "--json").stdout)
        return all(machine["sample"] for machine in machines if machine["name"] in ("alpha", "beta"))

    until(sampled, "a sample of each machine")
    assert "disk" in cli.run("resources", "list").stdout


def test_watching_ends_on_an_interrupt(cli: Cli) -> None:
    watching = cli.start("resources", "list", "--watch")
    assert watching.stdout is not None
    first = watching.stdout.readline().decode()
    assert first.startswith("●")
    os.kill(watching.pid, signal.SIGINT)
    _, err = watching.communicate(timeout=PATIENCE_S)
    assert (watching.returncode, err) == (0, b"")


def test_watching_on_a_terminal_draws_in_place(cli: Cli) -> None:
    screen = cli.screen("resources", "list", "--watch")
    at = screen.until("alpha")
    screen.until("alpha", after=at)
    screen.press("\x03")
    assert screen.end() == 0
    assert "Traceback" not in screen.plain


def test_this_machine(cli: Cli) -> None:
    said = cli.run("resources", "detect")
    assert "devices" in said.stdout.splitlines()
    told = json.loads(cli.run("resources", "detect", "--json").stdout)
    assert told["inventory"]["cpu_cores"] >= 1


def test_limits_of_a_token(cli: Cli) -> None:
    cli.run("token", "create", "--role", "submitter", "--name", "limited", "--max-running", "1", "--max-devices", "2")
    try:
        told = json.loads(cli.run("token", "list", "--json").stdout)
        [token] = [each for each in told if each["name"] == "limited"]
        assert (token["max_running"], token["max_devices"]) == (1, 2)
    finally:
        cli.run("token", "revoke", "limited")
