"""A command as it is asked for and as it is sent."""

from __future__ import annotations

from typing import Any

import pytest

from gpulayer.client.command import Command, CommandRefused, default_name, ranges_of
from gpulayer.client.submission import Source
from gpulayer.protocol.types import CommandSpec, JobSpec, Requirements


def test_all_of_it() -> None:
    command = Command(
        argv=["python", "train.py"],
        outputs=["a/**", "b", "b"],
        env={"LR": "0.1"},
        cwd="./src/",
        accelerator="cuda",
        devices=2,
        worker="box",
        min_vram="40GB",
        frameworks=["torch>=2.4"],
        wait_for_worker=True,
        retries=3,
        timeout_s=60,
        grace_s=1,
        priority=-1,
        labels={"k": "v"},
        after=["k3f9"],
        array="3,0-1",
    )
    assert command.spec("d" * 64) == JobSpec(
        command=CommandSpec(
            argv=("python", "train.py"), bundle="d" * 64, env={"LR": "0.1"}, cwd="src", output_globs=("a/**", "b")
        ),
        requirements=Requirements(
            accelerator="cuda", devices=2, worker="box", min_vram_bytes=40_000_000_000, frameworks=("torch>=2.4",)
        ),
        wait_for_worker=True,
        name="train.py",
        timeout_s=60,
        grace_s=1,
        retries=3,
        priority=-1,
        labels={"k": "v"},
        after=("k3f9",),
        array=((0, 1), (3, 3)),
    )


def test_a_text_is_a_shells_line() -> None:
    spec = Command(argv="make && make test\n").spec("")
    assert spec.command is not None
    assert spec.command.argv == ("/bin/sh", "-c", "make && make test\n")
    assert spec.name == "make && make test"


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (("python3.11", "-u", "code/train.py", "--lr", "1"), "train.py"),
        (("python", "-m", "http.server"), "http.server"),
        (("python", "-c", "print(1)"), "python -c 'print(1)'"),
        (("bash", "run.sh"), "run.sh"),
        (("/usr/bin/nvidia-smi",), "nvidia-smi"),
        (("x" * 100,), "x" * 63 + "…"),
    ],
)
def test_names(argv: tuple[str, ...], name: str) -> None:
    assert default_name(argv) == name


@pytest.mark.parametrize(
    ("array", "ranges"),
    [
        ("0-95,100", ((0, 95), (100, 100))),
        ("7", ((7, 7),)),
        ("2, 1,0", ((0, 2),)),
        ("0-5,3-9", ((0, 9),)),
        (4, ((0, 3),)),
        (range(0, 6, 2), ((0, 0), (2, 2), (4, 4))),
        ([5, 5, 6], ((5, 6),)),
        (range(3, 10_003), ((3, 10_002),)),
    ],
)
def test_arrays(array: Any, ranges: tuple[tuple[int, int], ...]) -> None:
    assert ranges_of(array) == ranges


@pytest.mark.parametrize(
    "array", ["", "x", "5-1", "-3", "1;2", 0, [], range(0), "0-10000", range(10**12), range(0, 10**12, 2), 10**12, "1-"]
)
def test_what_is_no_array(array: Any) -> None:
    with pytest.raises(CommandRefused, match=r"array"):
        ranges_of(array)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"argv": []}, "no command was named"),
        ({"argv": "  "}, "the shell's line is empty"),
        ({"argv": ["a\0b"]}, "NUL"),
        ({"argv": ["x"], "env": {"A-B": "1"}}, "'A-B' is no name of a variable"),
        ({"argv": ["x"], "env": {"GPULAYER_JOB": "1"}}, "are set by GPUlayer itself"),
        ({"argv": ["x"], "cwd": "/tmp"}, "lies outside the job's folder"),
        ({"argv": ["x"], "cwd": "a/../.."}, "lies outside the job's folder"),
        ({"argv": ["x"], "outputs": "a"}, r"outputs='a' is one text; give a list: \['a'\]"),
        ({"argv": ["x"], "outputs": ["../a"]}, "is no glob below the job's folder"),
        ({"argv": ["x"], "devices": 2}, "devices counts accelerators: name their kind too, like accelerator='cuda'"),
        ({"argv": ["x"], "frameworks": "pytorch"}, "frameworks: unknown framework 'pytorch'"),
        ({"argv": ["x"], "nodes": 2, "array": 3}, "on 2 machines at once can't have an array"),
        ({"argv": ["x"], "nodes": 2, "retries": 1}, "on 2 machines at once can't have retries"),
        ({"argv": ["x"], "timeout_s": 0}, "timeout_s=0 leaves no time at all"),
        ({"argv": ["x"], "grace_s": float("nan")}, "less than nothing"),
        ({"argv": ["x"], "retries": -1}, "less than nothing"),
        ({"argv": ["x"], "key": ""}, "the idempotency key is empty"),
    ],
)
def test_what_can_not_be(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(CommandRefused, match=said):
        Command(**fields).spec("")


@pytest.mark.parametrize("source", ["", Source(folder="")])
def test_a_source_that_is_nothing_is_not_the_current_folder(source: Any) -> None:
    with pytest.raises(CommandRefused, match=r"the source folder has no name; '\.' is the current one"):
        Command(argv=["x"], source=source).source_folder()
