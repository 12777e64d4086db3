"""`gpulayer submit` over real processes."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from tests.support.deployment import Deployment
from tests.support.terminal import Cli

ROOT = Path(__file__).resolve().parents[3]


def test_the_commands_of_the_readme(cli: Cli) -> None:
    shutil.copytree(ROOT / "examples", cli.folder / "examples")
    job = "examples/shell_job"
    words = ("--source", job, "--input", f"{job}/sales.csv:sales.csv", "--output", "report.txt")
    done = cli.run("submit", *words, "--", "bash", "report.sh")
    assert re.match(r"reading \d+ lines on ", done.stdout)
    report = (cli.folder / job / "report.txt").read_text()
    assert report.count("\n") == 4
    assert done.stdout.endswith(report)
    said = done.stderr.splitlines()
    [source] = [line for line in said if line.startswith("✓ source ")]
    assert re.fullmatch(r"✓ source   2 files, 2 changed, \d kB sent +\d+\.\d s", source)
    assert any(re.fullmatch(r"● alpha +job \w+", line) for line in said)
    assert "report.txt has 4 regions" in said
    assert re.fullmatch(r"✓ 1 file, \d+ B: report.txt", said[-1])
    # what was sent once is not sent again, and what came back and was not touched is replaced
    again = cli.run("submit", *words, "--", "sh", "-c", "echo other > report.txt")
    assert "3 files, nothing changed" in again.stderr
    assert (cli.folder / job / "report.txt").read_text() == "other\n"


def test_streams_are_apart_and_quiet_adds_nothing(cli: Cli) -> None:
    done = cli.run("submit", "--quiet", "--", "sh", "-c", "echo out; echo err >&2; printf 'no newline'")
    assert (done.stdout, done.stderr) == ("out\nno newline", "err\n")


def test_output_comes_as_it_is_written(cli: Cli) -> None:
    go = cli.folder / "go"
    program = f"echo first; while ! [ -e '{go}' ]; do sleep 0.02; done; echo second"
    process = cli.start("submit", "-q", "--shell", program)
    assert process.stdout is not None
    with process, process.stdout:
        assert process.stdout.readline() == b"first\n"
        go.touch()
        assert process.stdout.read() == b"second\n"
        assert process.wait() == 0


@pytest.mark.parametrize(
    ("program", "code", "said"),
    [
        ("exit 7", 7, "exit code 7"),
        ("kill -SEGV $$", 139, "SIGSEGV"),
        ("kill -KILL $$", 137, "SIGKILL"),
    ],
)
def test_the_exit_code_is_the_programs(cli: Cli, program: str, code: int, said: str) -> None:
    last = cli.run("submit", "--shell", program, code=code).stderr.splitlines()[-1]
    assert last.startswith("✗ failed on alpha after ")
    assert said in last


def test_a_program_that_is_not_there(cli: Cli) -> None:
    last = cli.run("submit", "--", "no-such-program", "x", code=127).stderr.splitlines()[-1]
    assert last.startswith("✗ failed on alpha after ")
    assert "no-such-program" in last


def test_one_that_takes_too_long(cli: Cli) -> None:
    last = cli.run("submit", "--timeout", "0.3s", "--grace", "0.2s", "--", "sleep", "60", code=143).stderr.splitlines()[
        -1
    ]
    assert "timed out after 0.3 s" in last


def test_what_no_machine_can_run(cli: Cli) -> None:
    done = cli.run("submit", "--accelerator", "cuda", "--", "true", code=69)
    assert (done.stdout, "Traceback" in done.stderr) == ("", False)
    assert any(line.startswith("  alpha ") and "cuda" in line for line in done.stderr.splitlines())
    assert any(line.startswith("  beta ") for line in done.stderr.splitlines())


def test_the_environment_is_what_was_given(cli: Cli) -> None:
    env = {"SECRET_OF_MINE": "x", "LR": "0.1"}
    words = ("--env", "A=1=2", "--env", "LR", "--env", "EMPTY=", "--shell", "echo $A/$LR/$EMPTY/$SECRET_OF_MINE/")
    assert cli.run("submit", "-q", *words, env=env).stdout == "1=2/0.1///\n"


def test_where_it_starts_and_what_lies_there(cli: Cli) -> None:
    (cli.folder / "src" / "deep").mkdir(parents=True)
    (cli.folder / "src" / "deep" / "run.sh").write_text("#!/bin/sh\npwd; ls ..; cat ../data/*/x\n")
    (cli.folder / "src" / "deep" / "run.sh").chmod(0o755)
    (cli.folder / "in" / "sub").mkdir(parents=True)
    (cli.folder / "in" / "sub" / "x").write_text("the input\n")
    words = ("--source", "src", "--input", "in:data", "--input", "in/sub/x:data2/")
    lines = cli.run("submit", "-q", *words, "--cwd", "deep", "--", "./run.sh").stdout.splitlines()
    assert lines[0].endswith("/deep")
    assert lines[1:] == ["data", "data2", "deep", "the input"]


def test_outputs_come_back_after_a_failure_too_and_nothing_here_is_lost(cli: Cli) -> None:
    (cli.folder / "src").mkdir()
    mine = cli.folder / "src" / "result.txt"
    mine.write_text("sent\n")
    go = cli.folder / "go"
    program = f"echo theirs > result.txt; mkdir out; echo 1 > out/a; while ! [ -e '{go}' ]; do sleep 0.02; done; exit 3"
    process = cli.start(
        "submit",
        "--source",
        "src",
        "--output",
        "*.txt",
        "--output",
        "out/**",
        "--output",
        "nope*",
        "--shell",
        f"echo up; {program}",
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    mine.write_text("changed meanwhile\n")
    go.touch()
    _, err = process.communicate()
    assert process.returncode == 3
    beside = next(path for path in (cli.folder / "src").iterdir() if ".from-" in path.name)
    assert (mine.read_text(), beside.read_text()) == ("changed meanwhile\n", "theirs\n")
    assert (cli.folder / "src" / "out" / "a").read_text() == "1\n"
    assert b"gpulayer: --output nope*: the job left no such file" in err


def test_no_download_and_another_folder(cli: Cli) -> None:
    done = cli.run("submit", "--output", "x", "--no-download", "--json", "--shell", "echo 1 > x; echo out")
    job = json.loads(done.stdout)
    assert "out" in done.stderr
    assert (job["state"], job["exit_code"], job["downloaded"], list(cli.folder.iterdir())) == ("succeeded", 0, [], [])
    cli.run("job", "download", job["id"], "--to", "deep/er")
    assert (cli.folder / "deep" / "er" / "x").read_text() == "1\n"
    cli.run("submit", "--output", "x", "--to", "there", "--shell", "echo 2 > x")
    assert (cli.folder / "there" / "x").read_text() == "2\n"


def test_json_of_a_failure(cli: Cli) -> None:
    job = json.loads(cli.run("submit", "--json", "--label", "k=v", "--name", "mine", "--", "false", code=1).stdout)
    assert (job["state"], job["exit_code"], job["outcome"]["exit_code"]) == ("failed", 1, 1)
    assert (job["labels"], job["name"], job["command"]) == ({"k": "v"}, "mine", "false")


def test_the_same_key_is_the_same_job(cli: Cli) -> None:
    first = cli.run("submit", "-d", "--idempotency-key", cli.folder.name, "--", "true").stdout
    assert cli.run("submit", "-d", "--idempotency-key", cli.folder.name, "--", "true").stdout == first
    line = cli.fails("submit", "-d", "--idempotency-key", cli.folder.name, "--", "false", code=1)
    assert first.strip() in line


def test_an_array(cli: Cli) -> None:
    words = ("--array", "0-2,5", "--output", "out.txt", "--to", "out")
    done = cli.run(
        "submit", *words, "--shell", "echo $GPULAYER_ARRAY_INDEX | tee out.txt; [ $GPULAYER_ARRAY_INDEX != 2 ]", code=1
    )
    assert done.stdout == ""
    assert "✗ 3 of 4 done · 1 failed" in done.stderr
    job = next((cli.folder / "out").iterdir())
    assert {path.name: (path / "out.txt").read_text() for path in job.iterdir()} == {n: f"{n}\n" for n in "0125"}
    assert cli.run("job", "logs", job.name, "--index", "5").stdout == "5\n"
    shown = json.loads(cli.run("job", "show", job.name, "--json").stdout)
    assert [(task["index"], task["state"]) for task in shown["task_records"] if task["state"] != "succeeded"] == [
        (2, "failed")
    ]


def test_one_after_another(cli: Cli) -> None:
    first = cli.run("submit", "-d", "--shell", "sleep 0.3; exit 0").stdout.strip()
    assert cli.run("submit", "-q", "--after", first, "--", "echo", "then").stdout == "then\n"
    failing = cli.run("submit", "-d", "--", "false").stdout.strip()
    last = cli.run("submit", "--after", failing, "--", "echo", "never", code=1)
    assert last.stdout == ""
    assert failing in last.stderr


def test_a_server_is_started_where_none_runs(tmp_path: Path) -> None:
    with Deployment() as own:
        own.env["GPULAYER_LOCAL_WORKER"] = "--warm 0 --reserve-bytes 0"
        try:
            done = Cli(tmp_path, own.env).run("submit", "--", "sh", "-c", "echo hello; exit 5", code=5)
            assert done.stdout == "hello\n"
        finally:
            if os.path.exists(own.data / "endpoint.json"):
                own.local_worker()
