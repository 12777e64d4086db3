"""The options of the magics."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import gpulayer.source
from gpulayer.client.sending import SourceRefused
from gpulayer.client.submission import Input
from gpulayer.notebook.options import (
    CellOptions,
    HelpWanted,
    NotebookSession,
    UsageError,
    cell_parser,
    parse_cell_line,
)
from gpulayer.protocol.types import Requirements
from gpulayer.source import Limits


def test_without_options_any_machine_fits() -> None:
    assert parse_cell_line("") == CellOptions(requirements=Requirements())


def test_every_option() -> None:
    line = (
        "--accelerator cuda --devices 2 --worker 'gpu box' --session train --detach --timeout 2min --source ~/x "
        "--idle-timeout 10min --name 'a sweep' --quiet "
        "--max-output 5MB --include .env --include '*.bin' --exclude data --max-file 1GB --max-bundle 2GB --max-files 7"
    )
    assert parse_cell_line(line) == CellOptions(
        requirements=Requirements(accelerator="cuda", devices=2, worker="gpu box"),
        session="train",
        idle_timeout_s=600.0,
        name="a sweep",
        quiet=True,
        detach=True,
        timeout_s=120.0,
        max_output_bytes=5_000_000,
        source="~/x",
        include=(".env", "*.bin"),
        exclude=("data",),
        limits=Limits(file_bytes=1_000_000_000, bundle_bytes=2_000_000_000, files=7),
    )


def test_inputs_are_files_that_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.bin").touch()
    options = parse_cell_line("--input data.bin --input data.bin:in/")
    assert options.files == (
        Input(source="data.bin", target="data.bin"),
        Input(source="data.bin", target="in/data.bin"),
    )
    with pytest.raises(SourceRefused, match=r"input absent\.bin is not there; write --input SRC:DST"):
        parse_cell_line("--input absent.bin")


def test_every_option_of_placement() -> None:
    line = (
        "--accelerator cuda --min-vram 40GB --vram-share 8GB --device-name 'A100*' --min-capability 8.0 "
        "--min-driver 535.104 --framework 'torch>=2.4' --framework jax --python '>=3.11' --ram 64GB --cpus 8 "
        "--os linux --arch x86_64 --worker-label team=vision --bind-cpus --wait-for-worker"
    )
    options = parse_cell_line(line)
    assert options.wait_for_worker
    assert options.requirements == Requirements(
        accelerator="cuda",
        min_vram_bytes=40_000_000_000,
        vram_share_bytes=8_000_000_000,
        device_names=("A100*",),
        min_capability="8.0",
        min_driver="535.104",
        frameworks=("jax", "torch>=2.4"),
        python=">=3.11",
        ram_bytes=64_000_000_000,
        cpu_cores=8.0,
        os="linux",
        arch="x86_64",
        labels=("team=vision",),
        bind_cpus=True,
    )
    assert parse_cell_line("--framework jax").requirements == Requirements(frameworks=("jax",))  # nothing was kept


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--min-vram 40GB", "--min-vram is of devices: name their kind too, like --accelerator cuda"),
        ("--framework pytorch", "--framework: unknown framework 'pytorch': torch, jax, cupy, mlx or tensorflow; did"),
        ("--nodes 2", "--nodes: a cell runs on one machine; a command on several: gpulayer submit --nodes …"),
        ("--nodes 2 --worker box", "--worker names one machine: it can't go with --nodes 2"),
        ("--min-vrm 3", "unknown option --min-vrm; did you mean --min-vram?"),
        ("--sessoin x", "unknown option --sessoin; did you mean --session?"),
        ("--accelrator=cuda", "unknown option --accelrator=cuda; did you mean --accelerator?"),
        ("--xyz", "unknown option --xyz (%%gpulayer -h lists them)"),
        ("--sess x", "unknown option --sess"),  # no abbreviations: tomorrow they might be ambiguous
        ("train", "'train' belongs to no option"),
        ("jobs", "'jobs' is a command of a line of its own: %gpulayer jobs, with one %"),
        ("--idle-timeout 5min", "--idle-timeout is of a session: name one with --session NAME"),
        ("--session x --idle-timeout 0", "--idle-timeout: '0' leaves no time at all"),
        ("--name ''", "--name: '' is no name"),
        ("--session", "--session needs a value"),
        ("--session ''", "--session: '' is no name"),
        (f"--session {'x' * 65}", "is no name: 1 to 64 letters"),
        ("--worker ' '", "--worker: ' ' is no name"),
        ("--timeout 0", "--timeout: '0' leaves no time at all"),
        ("--devices two --accelerator cuda", "--devices: 'two' is no whole number"),
        ("--devices 0 --accelerator cuda", "--devices: 0 is too few: at least 1"),
        ("--max-files -3", "--max-files: -3 is too few: at least 1"),
        ("--max-fle 1GB", "unknown option --max-fle; did you mean --max-file?"),
        ("--devices 2", "name their kind too"),
        ("--devices 2 --accelerator cpu", "name their kind too"),
        ("--accelerator gpu", "unknown accelerator 'gpu': cuda, rocm, mps or cpu; did you mean cuda?"),
        ("--accelerator cdua", "unknown accelerator 'cdua': cuda, rocm, mps or cpu; did you mean cuda?"),
        ("--accelerator tpu", "unknown accelerator 'tpu': cuda, rocm, mps or cpu"),
        ('--worker "x', "the line can't be read: No closing quotation"),
    ],
)
def test_a_wrong_line_is_one_line_that_helps(line: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_cell_line(line)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


KEPT = NotebookSession(name="train", requirements=Requirements(accelerator="cuda"), idle_timeout_s=60.0)


@pytest.mark.parametrize(
    ("line", "session", "requirements", "idle_timeout_s"),
    [
        ("", "train", KEPT.requirements, 60.0),
        ("--idle-timeout 2min", "train", KEPT.requirements, 120.0),
        ("--session train", "train", KEPT.requirements, 60.0),
        ("--worker box", "train", Requirements(worker="box"), 60.0),
        ("--session other", "other", Requirements(), None),
    ],
)
def test_a_cell_in_a_notebook_with_a_session(
    line: str, session: str, requirements: Requirements, idle_timeout_s: float | None
) -> None:
    options = parse_cell_line(line, KEPT)
    assert (options.session, options.requirements, options.idle_timeout_s) == (session, requirements, idle_timeout_s)


def test_the_notebooks_session_waits_for_a_machine_where_it_says_so() -> None:
    kept = NotebookSession(name="train", requirements=Requirements(accelerator="cuda"), wait_for_worker=True)
    assert parse_cell_line("", kept).wait_for_worker
    assert not parse_cell_line("--worker box", kept).wait_for_worker
    assert not parse_cell_line("--session other", kept).wait_for_worker


def test_help_is_text_to_show() -> None:
    with pytest.raises(HelpWanted) as wanted:
        parse_cell_line("--session x -h")
    text = str(wanted.value)
    assert "%%gpulayer --session train" in text  # an example
    for option in ("--accelerator", "--devices", "--worker", "--detach", "--timeout", "--source", "--max-output"):
        assert option in text


def test_every_flag_that_an_error_of_the_source_names_is_an_option() -> None:
    """Whoever is told to take a flag can take it."""
    sources = [path.read_text() for path in Path(gpulayer.source.__file__).parent.glob("*.py")]
    named = {flag for text in sources for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)}
    known = {option for action in cell_parser()._actions for option in action.option_strings}
    assert {"--exclude", "--include", "--max-bundle"} <= named
    assert named <= known
