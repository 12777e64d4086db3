"""Bad input: one clear line each, and nothing half-done."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.support.deployment import Deployment
from tests.support.terminal import Cli


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--source", "nowhere", "--", "true"), 1, "source folder nowhere cannot be used: No such file or directory"),
        (("--source", "a file", "--", "true"), 1, "is not a folder; name the folder that holds it"),
        (("--input", "nowhere:x", "--", "true"), 1, "input nowhere is not there; write --input SRC:DST"),
        (("--input", "a file:../x", "--", "true"), 1, "an input can't lie outside the job's folder"),
        (("--input", "a file:/etc/x", "--", "true"), 1, "an input can't lie outside the job's folder"),
        (("--input", "a file:x/../../y", "--", "true"), 1, "an input can't lie outside the job's folder"),
        (("--input", "a file:x", "--input", "other:x", "--", "true"), 1, "would both be x"),
        (("--input", "a file:x", "--input", "other:x/y", "--", "true"), 1, "an input can't lie there"),
        (("--cwd", "../up", "--", "true"), 2, "lies outside the job's folder"),
        (("--output", "../x", "--", "true"), 2, "is no glob below the job's folder"),
        (("--env", "1X=2", "--", "true"), 2, "is no name of a variable"),
        (("--env", "NOT_SET_HERE", "--", "true"), 2, "no such variable here"),
        (("--timeout", "soon", "--", "true"), 2, "--timeout: 'soon' is no duration"),
        (("--array", "5-1", "--", "true"), 2, "5-1 is no range"),
        (("--accelerator", "gpu", "--", "true"), 2, "did you mean cuda?"),
        (("--devices", "2", "--", "true"), 2, "name their kind too"),
        (("--retries", "-1", "--", "true"), 2, "less than nothing"),
        (("--label", "x", "--", "true"), 2, "--label: 'x' is no pair"),
        (("--after", "zzzz", "--", "true"), 1, "zzzz"),
        (("--shell", "true", "--", "true"), 2, "--shell has a line already"),
        ((), 2, "no command was named"),
        (("--sorce", ".", "--", "true"), 2, "No such option"),
        ((b"--", b"echo", b"\xff\xfe"), 1, "not UTF-8"),
    ],
    ids=lambda value: " ".join(map(str, value))[:40] if isinstance(value, tuple) else None,
)
def test_one_line_each(cli: Cli, deployment: Deployment, words: tuple[str | bytes, ...], code: int, said: str) -> None:
    (cli.folder / "a file").write_text("x")
    (cli.folder / "other").write_text("y")
    before = deployment.api.jobs(limit=1)
    assert said in cli.fails("submit", *words, code=code)
    assert [job.id for job in deployment.api.jobs(limit=1)] == [job.id for job in before]


def test_a_secret_in_the_source_and_one_among_the_inputs(cli: Cli) -> None:
    (cli.folder / "src").mkdir()
    (cli.folder / "src" / ".env").write_text("TOKEN=abc\n")
    assert "looks like a secret: .env" in cli.fails("submit", "--source", "src", "--", "true", code=1)
    assert "looks like a secret" in cli.fails("submit", "--input", "src:data", "--", "true", code=1)
    words = ("--input", "src/.env:.env", "--", "cat", ".env")
    assert cli.run("submit", "-q", *words).stdout == "TOKEN=abc\n"


NAMES = ["with space", "line\nbreak", "ünï-ℂødé", "-dash", "--", "a:b", "'quote\"", "emp ty/deep/x", "$HOME", "*"]


def test_names_that_hurt(cli: Cli) -> None:
    source = cli.folder / "src"
    for name in NAMES:
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{name!r}\n")
    (source / "empty").touch()
    (source / "hollow").mkdir()
    (source / "run.sh").write_text(
        "#!/bin/sh\nfind . -type f ! -name run.sh | wc -l\nmkdir back && cp -r -- in/* back/\n"
    )
    (source / "run.sh").chmod(0o755)
    words = ("--source", "src", "--input", "src:in", "--output", "back/**", "--to", "out")
    lines = cli.run("submit", "-q", *words, "--", "sh", "-c", "ls -d hollow && ./run.sh").stdout.split()
    count = sum(len(files) for _, _, files in os.walk(source))  # both times without run.sh, one name in two lines
    assert lines == ["hollow", str(2 * count)]
    back = cli.folder / "out" / "back"
    for name in [*NAMES, "empty"]:
        assert (back / name).read_bytes() == (source / name).read_bytes()
    assert os.access(back / "run.sh", os.X_OK)


@pytest.mark.skipif(sys.platform != "linux", reason="names that are not UTF-8 can't be there")
def test_a_name_that_is_not_utf8_goes_there_and_comes_back(cli: Cli) -> None:
    name = b"src/caf\xe9"
    (cli.folder / "src").mkdir()
    with open(os.path.join(os.fsencode(cli.folder), name), "wb") as file:
        file.write(b"x")
    program = "mkdir out && cp caf* out"
    done = cli.run("submit", "--source", "src", "--output", "out/", "--to", "back", "--json", "--shell", program)
    assert os.listdir(os.fsencode(cli.folder / "back" / "out")) == [b"caf\xe9"]
    assert "✓ 1 file, 1 B: out/caf\\udce9" in done.stderr
    assert json.loads(done.stdout)["downloaded"] == ["out/caf\udce9"]


@pytest.mark.parametrize(
    "count",
    [
        5_000,
        pytest.param(
            50_000,
            marks=[
                pytest.mark.combination,
                pytest.mark.skipif(os.environ.get("GPULAYER_TEST_ALL") != "1", reason="takes long: make test-all"),
            ],
        ),
    ],
)
def test_many_small_files(cli: Cli, count: int) -> None:
    """As many as 50,000 go from a source to a workspace in `test_source_sync.py`."""
    source = cli.folder / "many"
    for folder in range(count // 1000):
        (source / str(folder)).mkdir(parents=True)
        for number in range(1000):
            (source / str(folder) / str(number)).write_text(f"{number % 7}")
    done = cli.run("submit", "--input", "many:many", "--", "sh", "-c", "find many -type f | wc -l")
    assert done.stdout.split() == [str(count)]
    assert f"✓ inputs   {count} files" in done.stderr


def test_a_file_that_changes_while_it_is_read(cli: Cli) -> None:
    """Its content is never sent under another's digest: here it is a pipe's other end that goes on writing."""
    (cli.folder / "pipe").mkdir()
    os.mkfifo(cli.folder / "pipe" / "fifo")
    assert "no regular file" in cli.fails("submit", "--input", "pipe:x", "--", "true", code=1)


def test_a_wrong_address_token_or_certificate(cli: Cli, deployment: Deployment) -> None:
    url = deployment.plane.endpoint.url
    env = {"GPULAYER_URL": url, "GPULAYER_TOKEN": "nonsense"}
    assert "does not know this token" in cli.fails("submit", "--", "true", code=75, env=env)
    env = {"GPULAYER_URL": "http://127.0.0.1:1", "GPULAYER_TOKEN": "x"}
    assert "can't be reached" in cli.fails("job", "list", code=75, env=env)
    assert "no token for" in cli.fails("job", "list", code=75, env={"GPULAYER_URL": url})


def test_a_full_disk_at_home(cli: Cli) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    with full.open("wb") as out:
        import subprocess

        from tests.support.terminal import GPULAYER

        done = subprocess.run(
            [*GPULAYER, "submit", "-q", "--", "echo", "hi"],
            cwd=cli.folder,
            env=cli.env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("gpulayer: ")
    assert "No space left on device" in done.stderr
