"""Commands over real processes: how they end, what they see, what they write."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from gpulayer.protocol.types import State
from tests.support.commands import Bench
from tests.support.processes import until

# ---------------------------------------------------------------- ends


@pytest.mark.parametrize("code", [0, 1, 3, 127, 255])
def test_the_exit_code_is_the_programs_own(bench: Bench, code: int) -> None:
    view = bench.run(f"exit {code}")
    assert view.outcome is not None
    assert (view.outcome.exit_code, view.outcome.signal, view.outcome.problem) == (code, None, "")
    assert view.state is (State.FAILED if code else State.SUCCEEDED)


def test_a_signal_is_told_by_number_and_name(bench: Bench) -> None:
    outcome = bench.run("kill -SEGV $$").outcome
    assert outcome is not None
    assert (outcome.exit_code, outcome.signal) == (None, signal.SIGSEGV)
    assert outcome.problem == f"ended by signal {int(signal.SIGSEGV)} (SIGSEGV)"


def test_the_record_says_what_was_used(bench: Bench) -> None:
    line = (
        "data = bytearray(100 << 20); import time; t = time.process_time()\nwhile time.process_time() < t + 0.1: pass"
    )
    view = bench.done(bench.submit("python3", "-c", line))
    outcome = view.outcome
    assert outcome is not None
    assert outcome.peak_rss_bytes is not None
    assert outcome.peak_rss_bytes > 100 << 20
    assert outcome.cpu_s is not None
    assert outcome.cpu_s >= 0.1
    assert outcome.wall_s is not None
    assert outcome.wall_s >= 0.1
    assert outcome.peak_device_bytes is None
    (attempt,) = bench.attempts(view.id)
    assert attempt.outcome == outcome
    assert attempt.worker == "alpha"


def test_a_failure_shows_its_last_words(bench: Bench) -> None:
    outcome = bench.run('echo to stdout; for i in 1 2 3; do echo "word $i" >&2; done; exit 2').outcome
    assert outcome is not None
    assert outcome.tail == "word 1\nword 2\nword 3"
    outcome = bench.run("echo only here; exit 2").outcome
    assert outcome is not None
    assert outcome.tail == "only here"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("no-such-program", "x"), "'no-such-program' is not there on this worker: not found in PATH (/"),
        (("./missing.sh",), "'./missing.sh' is not there on this worker"),
    ],
)
def test_a_command_that_cannot_be_run_is_one_clear_line(bench: Bench, argv: tuple[str, ...], words: str) -> None:
    view = bench.done(bench.submit(*argv))
    assert view.state is State.FAILED
    assert view.outcome is not None
    assert words in view.outcome.problem
    assert "\n" not in view.outcome.problem
    assert (view.outcome.exit_code, view.outcome.signal) == (127, None)  # as a shell says it


def test_a_file_that_may_not_be_run_says_what_to_do(bench: Bench, tmp_path: Path) -> None:
    plain, empty = tmp_path / "plain", tmp_path / "no-program"
    plain.write_text("#!/bin/sh\n")
    plain.chmod(0o644)
    empty.write_text("words")
    empty.chmod(0o755)
    outcomes = [bench.done(bench.submit(str(path))).outcome for path in (plain, empty)]
    problems = [outcome.problem if outcome else "" for outcome in outcomes]
    assert problems[0].endswith(
        "may not be executed on this worker: Permission denied; chmod +x it, or name its interpreter"
    )
    assert "is no program for this worker: Exec format error" in problems[1]


def test_a_working_folder_that_is_not_there_is_named(bench: Bench) -> None:
    view = bench.run("pwd", command={"cwd": "missing"})
    assert view.state is State.FAILED
    assert view.outcome is not None
    assert "the working folder 'missing' is not there in what was sent" in view.outcome.problem


# ---------------------------------------------------------------- what a program sees


def test_the_environment_is_the_allowed_one_with_the_jobs_own(bench: Bench) -> None:
    job = bench.submit("env", command={"env": {"GREETING": "hello world", "EMPTY": ""}})
    view = bench.done(job)
    lines = dict(line.split("=", 1) for line in bench.log(job).decode().splitlines())
    assert lines["GREETING"] == "hello world"
    assert lines["EMPTY"] == ""
    assert (lines["GPULAYER_JOB"], lines["GPULAYER_ATTEMPT"]) == (job, view.attempt)
    assert "GPULAYER_ARRAY_INDEX" not in lines
    assert "PATH" in lines
    assert not {"GPULAYER_DATA", "GPULAYER_TOKEN", "GPULAYER_EMBEDDED"} & set(lines)


def test_an_arrays_tasks_know_their_index(bench: Bench) -> None:
    job = bench.shell("echo I am $GPULAYER_ARRAY_INDEX", array=((3, 5), (9, 9)))
    assert bench.done(job).state is State.SUCCEEDED
    for index in (3, 4, 5, 9):
        assert bench.log(job, index=str(index)) == f"I am {index}\n".encode()


def test_standard_input_is_empty_and_the_session_its_own(bench: Bench) -> None:
    job = bench.shell("cat; ps -o sid= -p $$ | tr -d ' '; echo $$")
    assert bench.done(job).state is State.SUCCEEDED
    sid, pid = bench.log(job).split()
    assert sid == pid


def test_files_arrive_where_they_belong(bench: Bench, tmp_path: Path) -> None:
    names = {
        "plain.txt": b"plain",
        "with space.txt": b"space",
        "new\nline.txt": b"line",
        "größe.txt": "größe".encode(),
        "-rf": b"dash",
        "empty": b"",
        "sub/deeper/file.bin": bytes(range(256)),
    }
    for name, data in names.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    script = tmp_path / "run.sh"
    script.write_text("#!/bin/sh\nfind . -type f -printf x\ncat -- 'new\nline.txt' größe.txt ./-rf\n")
    script.chmod(0o755)
    digest = bench.bundle(tmp_path)
    job = bench.submit("./run.sh", command={"bundle": digest})
    assert bench.done(job).state is State.SUCCEEDED
    assert bench.log(job).decode() == "x" * (len(names) + 1) + "linegrößedash"
    below = bench.shell("pwd; ls", command={"bundle": digest, "cwd": "sub/deeper"})
    assert bench.done(below).state is State.SUCCEEDED
    path, name = bench.log(below).decode().split()
    assert path.endswith("/sub/deeper")
    assert name == "file.bin"


def test_a_source_that_is_not_there_is_one_clear_line(bench: Bench) -> None:
    body = {"key": "k-missing", "spec": {"command": {"argv": ["true"], "bundle": "f" * 64}}}
    answer = bench.deployment.request("POST", "/v1/jobs", json=body)
    assert answer.status_code == 409, answer.text
    assert "f" * 12 in answer.text


# ---------------------------------------------------------------- what it writes


def test_both_streams_arrive_whole_and_apart(bench: Bench) -> None:
    job = bench.shell("for i in 1 2 3 4 5; do echo out $i; echo err $i >&2; done")
    bench.done(job)
    assert bench.log(job, "stdout") == b"".join(b"out %d\n" % n for n in range(1, 6))
    assert bench.log(job, "stderr") == b"".join(b"err %d\n" % n for n in range(1, 6))


def test_output_arrives_while_the_program_runs(bench: Bench, tmp_path: Path) -> None:
    go = tmp_path / "go"
    job = bench.shell(f"printf first; until [ -e {go} ]; do sleep 0.02; done; echo ' second'")
    until(lambda: bench.log(job) == b"first", "the first words, with no line's end")
    assert bench.view(job).state is State.RUNNING
    go.touch()
    bench.done(job)
    assert bench.log(job) == b"first second\n"


def test_binary_output_arrives_as_it_is(bench: Bench) -> None:
    program = "import os; os.write(1, bytes(range(256)) * 1000); os.write(2, b'\\xff\\x00\\r\\n')"
    job = bench.submit("python3", "-c", program)
    assert bench.done(job).state is State.SUCCEEDED
    assert bench.log(job, "stdout") == bytes(range(256)) * 1000
    assert bench.log(job, "stderr") == b"\xff\x00\r\n"


def test_a_program_that_writes_nothing_has_no_stream_anywhere(bench: Bench) -> None:
    view = bench.run("true")
    assert view.end_offset == 0
    assert not list((bench.deployment.data / "streams").glob(f"*/{view.attempt}.stream"))
