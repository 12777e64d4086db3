"""Files that come back by globs, whatever the end."""

from __future__ import annotations

from pathlib import Path

from gpulayer.protocol.types import State
from tests.support.commands import Bench


def test_files_come_back_after_a_failure_too(bench: Bench) -> None:
    line = "mkdir -p deep; echo a > a.csv; echo b > 'deep/b c.csv'; : > empty.csv; echo x > other.txt; exit 3"
    view = bench.run(line, command={"output_globs": ("*.csv",)})
    assert view.state is State.FAILED
    assert view.outcome is not None
    assert (view.outcome.exit_code, view.outcome.problem, view.outcome.unmatched) == (3, "", ())
    assert bench.outputs(view.id) == {"a.csv": b"a\n", "deep/b c.csv": b"b\n", "empty.csv": b""}


def test_files_come_back_after_a_time_limit(bench: Bench) -> None:
    view = bench.run("echo half > part.txt; exec sleep 3600", timeout_s=1, command={"output_globs": ("*.txt",)})
    assert view.outcome is not None
    assert view.outcome.problem.startswith("timed out after 1 s, ")
    assert bench.outputs(view.id) == {"part.txt": b"half\n"}


def test_a_glob_that_matches_nothing_is_named(bench: Bench) -> None:
    view = bench.run("echo a > a.csv", command={"output_globs": ("*.csv", "checkpoints/**")})
    assert view.state is State.SUCCEEDED
    assert view.outcome is not None
    assert view.outcome.unmatched == ("checkpoints/**",)
    assert bench.outputs(view.id) == {"a.csv": b"a\n"}


def test_what_came_with_the_source_does_not_come_back(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "given.csv").write_text("given")
    (tmp_path / "changed.csv").write_text("before")
    command = {"bundle": bench.bundle(tmp_path), "output_globs": ("*.csv",)}
    view = bench.run("echo after > changed.csv; echo new > new.csv", command=command)
    assert bench.outputs(view.id) == {"changed.csv": b"after\n", "new.csv": b"new\n"}


def test_a_file_of_many_megabytes_comes_back(bench: Bench) -> None:
    view = bench.run("head -c 20000000 /dev/zero > big.bin", command={"output_globs": ("big.bin",)})
    assert view.state is State.SUCCEEDED
    assert bench.outputs(view.id) == {"big.bin": bytes(20_000_000)}


def test_the_next_command_finds_an_empty_folder(bench: Bench) -> None:
    for _ in range(6):
        bench.run("touch left .hidden; mkdir -m 000 closed")
    jobs = [bench.shell("ls -A; stat -c %a .") for _ in range(6)]
    for job in jobs:
        bench.done(job)
    assert [bench.log(job) for job in jobs] == [b"700\n"] * 6
