"""`gpulayer job`, `resources` and `token` over real processes."""

from __future__ import annotations

import json

from tests.support.deployment import Deployment
from tests.support.terminal import Cli


def test_detached_then_looked_at(cli: Cli) -> None:
    go = cli.folder / "go"
    program = f"echo one; echo bad >&2; while ! [ -e '{go}' ]; do sleep 0.02; done; echo two | tee out.txt"
    words = ("--label", f"test={cli.folder.name}", "--name", "looked at", "--output", "out.txt", "--shell", program)
    done = cli.run("submit", "--detach", *words)
    job = done.stdout.strip()
    assert done.stdout == f"{job}\n"
    following = cli.start("job", "logs", "-f", job)
    assert following.stdout is not None
    assert following.stdout.readline() in (b"one\n", b"bad\n")
    listed = json.loads(
        cli.run("job", "list", "--label", f"test={cli.folder.name}", "--state", "running", "--json").stdout
    )
    assert [(each["id"], each["name"], each["state"]) for each in listed] == [(job, "looked at", "running")]
    assert ["●", job, "looked", "at"] in [line.split()[:4] for line in cli.run("job", "list").stdout.splitlines()]
    assert cli.run("job", "wait", job, "--timeout", "0.1s", code=75).stdout == ""
    go.touch()
    rest, _ = following.communicate()
    assert rest.endswith(b"two\n")
    assert following.returncode == 0
    assert cli.run("job", "wait", job).stderr.startswith("✓ done on alpha in ")
    assert sorted(cli.run("job", "logs", job).stdout.splitlines()) == ["bad", "one", "two"]
    assert cli.run("job", "logs", job, "--stream", "stderr").stdout == "bad\n"
    assert cli.run("job", "logs", job, "--stream", "stdout", "--tail", "4").stdout == "two\n"
    came = json.loads(cli.run("job", "download", job, "--json").stdout)
    assert came["written"] == [{"path": "out.txt", "size": 4}]
    assert (cli.folder / "out.txt").read_text() == "two\n"


def test_show_has_the_record_of_each_attempt(cli: Cli) -> None:
    job = cli.run("submit", "-d", "--label", "a=b", "--shell", "exit 4").stdout.strip()
    assert cli.run("job", "wait", job, code=4).stderr.startswith("✗ failed on alpha after ")
    shown = cli.run("job", "show", job).stdout
    for words in ("exit code 4", "a=b", "/bin/sh -c 'exit 4'", "peak RAM", "submitted"):
        assert words in shown
    record = json.loads(cli.run("job", "show", job, "--json").stdout)["attempt_records"][0]
    assert (record["number"], record["worker"], record["outcome"]["exit_code"]) == (1, "alpha", 4)
    assert record["outcome"]["peak_rss_bytes"] > 0
    assert record["started_at"] <= record["ended_at"]


def test_waiting_for_many(cli: Cli) -> None:
    jobs = [cli.run("submit", "-d", "--", program).stdout.strip() for program in ("true", "false", "true")]
    done = cli.run("job", "wait", *jobs, "--json", code=1)
    assert [each["exit_code"] for each in json.loads(done.stdout)] == [0, 1, 0]
    assert cli.run("job", "wait", jobs[0], jobs[2]).returncode == 0


def test_cancelling(cli: Cli) -> None:
    job = cli.run("submit", "-d", "--", "sleep", "600").stdout.strip()
    assert f"job {job}" in cli.run("job", "cancel", job).stdout
    assert cli.run("job", "wait", job, code=143).stderr.startswith("■ cancelled")


def test_what_is_not_there(cli: Cli) -> None:
    job = cli.run("submit", "-d", "--", "true").stdout.strip()
    near = job[:-1] + ("a" if job[-1] != "a" else "b")
    for command in ("show", "logs", "wait", "cancel", "download"):
        line = cli.fails("job", command, near, code=2)
        assert line.startswith(f"gpulayer: no job {near}")
    assert "no state" in cli.fails("job", "list", "--state", "runing", code=2)
    assert "did you mean running?" in cli.fails("job", "list", "--state", "runing", code=2)


def test_machines(cli: Cli) -> None:
    shown = cli.run("resources", "list").stdout
    assert [line.split()[1] for line in shown.splitlines() if line.startswith("●")] == ["alpha", "beta"]
    machines = json.loads(cli.run("resources", "list", "--json").stdout)
    there = {machine["name"]: machine["slots"] for machine in machines if machine["connected"]}
    assert there == {"alpha": 4, "beta": 1}


def test_tokens(cli: Cli, deployment: Deployment) -> None:
    done = cli.run("token", "create", "--role", "submitter", "--name", "alice", "--expires", "30d")
    token = done.stdout.strip()
    assert done.stdout == f"{token}\n"
    assert "role submitter" in done.stderr
    assert token not in done.stderr
    assert "alice" in cli.run("token", "list").stdout
    url = deployment.plane.endpoint.url
    elsewhere = {"GPULAYER_URL": url, "GPULAYER_TOKEN": token, "GPULAYER_DATA": str(cli.folder / "d")}
    assert cli.run("submit", "-q", "--", "echo", "hi", env=elsewhere).stdout == "hi\n"
    line = cli.fails("token", "list", code=77, env=elsewhere)
    assert "needs a token of the role admin" in line
    assert cli.run("token", "revoke", "alice").stderr == "✓ token alice is revoked\n"
    assert "revoked" in cli.fails("job", "list", code=75, env=elsewhere)
    assert "no token alic (did you mean alice?)" in cli.fails("token", "revoke", "alic", code=2)
