"""What a job may ask of its machine, as it is typed and as a program says it."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpulayer as gl
from gpulayer.placement import BY_KEYWORD, OPTIONS, Needs, Option, Placing, as_flag, as_keyword, checked, requirements
from gpulayer.protocol.types import Requirements

ALL_TYPED: dict[str, Any] = {
    "accelerator": "cuda",
    "devices": "2",
    "min_vram": "40GB",
    "device_names": ["H100*", "A100*"],
    "min_capability": "8.0",
    "min_driver": "535.104",
    "frameworks": ["torch >= 2.4", "jax"],
    "python": ">=3.11",
    "ram": "64GB",
    "cpus": "8",
    "os": "linux",
    "arch": "x86_64",
    "worker_labels": ["team=vision", "rack=7"],
    "nodes": "2",
    "group_locality": "require",
    "bind_cpus": True,
    "wait_for_worker": True,
}
ALL = Requirements(
    accelerator="cuda",
    devices=2,
    min_vram_bytes=40_000_000_000,
    device_names=("A100*", "H100*"),
    min_capability="8.0",
    min_driver="535.104",
    frameworks=("jax", "torch>=2.4"),
    python=">=3.11",
    ram_bytes=64_000_000_000,
    cpu_cores=8.0,
    os="linux",
    arch="x86_64",
    labels=("rack=7", "team=vision"),
    nodes=2,
    locality="require",
    bind_cpus=True,
)


def test_all_that_can_be_typed() -> None:
    assert requirements(ALL_TYPED, as_flag) == ALL


def test_all_that_a_program_can_say() -> None:
    needs = Needs(
        accelerator="cuda",
        devices=2,
        min_vram=40_000_000_000,
        device_names=["A100*", "H100*"],
        min_capability=8.0,
        min_driver="535.104",
        frameworks=("jax", "torch>=2.4"),
        python=">=3.11",
        ram="64GB",
        cpus=8,
        os="linux",
        arch="x86_64",
        worker_labels={"team": "vision", "rack": "7"},
        nodes=2,
        group_locality="require",
        bind_cpus=True,
        wait_for_worker=True,
    )
    assert needs.requirements() == ALL


def test_nothing_asked_is_any_machine() -> None:
    assert requirements({}) == Needs().requirements() == Requirements()
    assert checked({"devices": 0, "nodes": None, "bind_cpus": False, "frameworks": []}) == {}


def test_the_lists_of_options_are_one() -> None:
    keywords = [option.keyword for option in OPTIONS]
    assert keywords == list(BY_KEYWORD)
    assert sorted(keywords) == sorted(Placing.__annotations__) == sorted(field.name for field in fields(Needs))
    given = {option.field for option in OPTIONS if option.field}
    assert given == set(Requirements.__struct_fields__)


def test_help_names_each_keyword() -> None:
    for function in (gl.explain, gl.Client.explain, gl.Client.submit, gl.AsyncClient.explain):
        shown = inspect.signature(function).parameters
        assert set(BY_KEYWORD) <= set(shown)
        assert (shown["nodes"].default, shown["accelerator"].default) == (1, None)
        assert "placement" not in shown


def test_what_was_read_can_be_read_again() -> None:
    values = checked(ALL_TYPED)
    assert checked(values) == values


@pytest.mark.parametrize(
    ("keyword", "value", "field", "read"),
    [
        ("min_vram", "24GiB", "min_vram_bytes", 24 * 2**30),
        ("vram_share", 8e9, "vram_share_bytes", 8_000_000_000),
        ("device_names", "A100*", "device_names", ("A100*",)),
        ("min_capability", "sm_9.0", "min_capability", "9.0"),
        ("min_capability", 8, "min_capability", "8"),
        ("min_driver", 535.1, "min_driver", "535.1"),
        ("frameworks", "Torch>=2.4,<3", "frameworks", ("torch<3,>=2.4",)),
        ("frameworks", ["torch==2.4.*", "torch==2.4.*"], "frameworks", ("torch==2.4.*",)),
        ("python", "3.11", "python", "==3.11.*"),
        ("python", "3.11.4", "python", "==3.11.4"),
        ("python", ">=3.10,!=3.12.0", "python", "!=3.12.0,>=3.10"),
        ("cpus", 0.5, "cpu_cores", 0.5),
        ("os", "macOS", "os", "darwin"),
        ("arch", "aarch64", "arch", "arm64"),
        ("arch", "amd64", "arch", "x86_64"),
        ("worker_labels", "team=a=b", "labels", ("team=a=b",)),
        ("worker_labels", {"rack": 7}, "labels", ("rack=7",)),
        ("worker", "gpu box", "worker", "gpu box"),
        ("nodes", 3, "nodes", 3),
    ],
)
def test_how_each_is_read(keyword: str, value: Any, field: str, read: Any) -> None:
    given = {"accelerator": "cuda", keyword: value}
    assert getattr(requirements(given), field) == read
    assert getattr(Needs(**given).requirements(), field) == read


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (
            {"accelerator": "gpu"},
            "--accelerator: unknown accelerator 'gpu': cuda, rocm, mps or cpu; did you mean cuda?",
        ),
        ({"accelerator": 3}, "--accelerator: 3 is no text"),
        ({"devices": "two"}, "--devices: 'two' is no whole number"),
        ({"devices": "0"}, "--devices: 0 is too few: at least 1"),
        ({"devices": 1.5}, "--devices: '1.5' is no whole number"),
        ({"devices": "2"}, "--devices counts accelerators: name their kind too, like --accelerator cuda"),
        ({"min_vram": "lots"}, "--min-vram: 'lots' is no size; write it like 40GB"),
        ({"min_vram": 0}, "--min-vram: 0 is no size; write it like 40GB"),
        ({"min_vram": float("inf")}, "--min-vram: inf is no size; write it like 40GB"),
        ({"min_vram": "40GB"}, "--min-vram is of devices: name their kind too, like --accelerator cuda"),
        (
            {"vram_share": "8GB", "accelerator": "cpu"},
            "--vram-share is a share of a device: name their kind too, like --accelerator cuda",
        ),
        (
            {"vram_share": "8GB", "accelerator": "cuda", "devices": 2},
            "--vram-share is of one device: it can't go with --devices 2",
        ),
        ({"device_names": [""], "accelerator": "cuda"}, "--device-name: '' names nothing"),
        ({"device_names": 7, "accelerator": "cuda"}, "--device-name: '7' names nothing"),
        (
            {"min_capability": "80", "accelerator": "cuda"},
            "--min-capability: '80' is no compute capability; did you mean 8.0?",
        ),
        (
            {"min_capability": "ampere", "accelerator": "cuda"},
            "--min-capability: 'ampere' is no compute capability; write it like 8.0",
        ),
        ({"min_capability": "8.0", "accelerator": "mps"}, "--min-capability: mps devices have none; leave it out"),
        (
            {"min_capability": "8.0", "accelerator": "rocm"},
            "--min-capability is of cuda devices; name rocm ones by --device-name",
        ),
        (
            {"min_driver": "new", "accelerator": "cuda"},
            "--min-driver: 'new' is no version of a driver; write it like 535.104",
        ),
        (
            {"frameworks": ["pytorch"]},
            "--framework: unknown framework 'pytorch': torch, jax, cupy, mlx or tensorflow; did you mean torch?",
        ),
        (
            {"frameworks": ["torch 2.4"]},
            "--framework: 'torch 2.4' is no framework with versions; write it like torch>=2.4",
        ),
        (
            {"frameworks": ["jax[cuda13]"]},
            "--framework: 'jax[cuda13]': extras are of an installation, whether it works is tried out; write jax",
        ),
        ({"frameworks": [">=2"]}, "--framework: unknown framework '>=2': torch, jax, cupy, mlx or tensorflow"),
        ({"python": "three"}, "--python: 'three' is no version of Python; write it like 3.11 or >=3.11"),
        ({"python": ""}, "--python: '' is no version of Python; write it like 3.11 or >=3.11"),
        ({"ram": True}, "--ram: True is no size; write it like 40GB"),
        ({"cpus": "all"}, "--cpus: 'all' is no number of cores; write it like 4 or 0.5"),
        ({"cpus": "nan"}, "--cpus: 'nan' is no number of cores; write it like 4 or 0.5"),
        ({"cpus": -1}, "--cpus: -1 is no number of cores; write it like 4 or 0.5"),
        ({"os": "windows"}, "--os: unknown system 'windows': linux or darwin"),
        (
            {"arch": "arm"},
            "--arch: unknown architecture 'arm': x86_64, arm64, ppc64le or riscv64; did you mean arm64?",
        ),
        ({"worker_labels": ["team"]}, "--worker-label: 'team' is no pair; write it like name=value"),
        ({"worker_labels": ["team=a", "team=b"]}, "--worker-label: team can't be both a and b"),
        ({"worker": "x\n"}, "--worker: 'x\\n' is no name: 1 to 64 letters"),
        ({"nodes": "0"}, "--nodes: 0 is too few: at least 1"),
        ({"nodes": 2, "worker": "box"}, "--worker names one machine: it can't go with --nodes 2"),
        (
            {"group_locality": "near", "nodes": 2},
            "--group-locality: unknown locality 'near': prefer, require, spread or none",
        ),
        ({"group_locality": "spread"}, "--group-locality is about several machines: say how many with --nodes 2"),
        (
            {"bind_cpus": True},
            "--bind-cpus is about cores next to devices: name their kind too, like --accelerator cuda",
        ),
        ({"bind_cpus": "yes", "accelerator": "cuda"}, "--bind-cpus: 'yes' is neither True nor False"),
    ],
)
def test_what_can_not_be_asked_is_one_line(given: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError) as refused:
        requirements(given, as_flag)
    assert str(refused.value) == line


def tried(wish: dict[str, Any], called: Any = as_keyword) -> tuple[Requirements | None, str]:
    """What was read, or why not."""
    try:
        return requirements(wish, called), ""
    except ValueError as refused:
        return None, str(refused)


@given(option=st.sampled_from(OPTIONS), text=st.text() | st.lists(st.text(), max_size=3), cuda=st.booleans())
def test_whatever_is_typed_is_read_or_refused_in_one_line(option: Option, text: Any, cuda: bool) -> None:
    """No text is a fault of ours, and what was read fits into a message."""
    read, why = tried(({"accelerator": "cuda"} if cuda else {}) | {option.keyword: text}, as_flag)
    assert why.isprintable()
    if read is None:
        assert why.startswith(option.flag)
    else:
        assert msgspec.json.decode(msgspec.json.encode(read), type=Requirements) == read


@given(text=st.from_regex(r"[a-z]{0,3}(torch|jax)? ?[<>=!~]{0,2} ?[0-9.*a-z+]{0,6}", fullmatch=True))
def test_versions_that_were_read_stay_as_they_are(text: str) -> None:
    for keyword in ("frameworks", "python"):
        read, why = tried({keyword: text})
        assert (read is None) == why.startswith(keyword)
        assert read is None or requirements({keyword: getattr(read, keyword) or None}) == read


def test_a_program_reads_its_own_words() -> None:
    with pytest.raises(ValueError, match=r"^min_vram is of devices: name their kind too, like accelerator='cuda'$"):
        Needs(min_vram="40GB").requirements()
    with pytest.raises(ValueError, match=r"^frameworks: unknown framework 'pytorch'"):
        requirements({"frameworks": "pytorch"}, as_keyword)


def test_lists_that_change_are_read_each_time() -> None:
    """What is remembered of equal wishes is never another one's."""
    names = ["torch"]
    needs = Needs(frameworks=names)
    assert needs.requirements().frameworks == ("torch",)
    names.append("jax")
    assert needs.requirements().frameworks == ("jax", "torch")
    assert Needs(devices=1, accelerator="cuda").requirements().devices == 1
    with pytest.raises(ValueError, match="devices"):
        Needs(devices=True, accelerator="cuda").requirements()
