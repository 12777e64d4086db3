"""`gpulayer explain`, and the options of placement on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from gpulayer.client.explanation import Explanation
from gpulayer.placement import OPTIONS
from gpulayer.protocol.types import Placement, Reason

Gpulayer = Callable[..., Any]

REJECTED = Explanation(
    placement=Placement.REJECTED,
    reasons=(
        Reason(
            worker="gpu-box-1", code="device_count", text="needs 2 usable cuda devices, worker has 1", wanted=2, found=1
        ),
        Reason(worker="mac-studio", code="framework", text="framework 'jax' not installed", remedy="install jax"),
    ),
    nearest="install jax[cuda13] on gpu-box-2",
)
PLACEMENT = (
    "--accelerator cuda --devices 2 --min-vram 40GB --device-name A100* --device-name H100* --min-capability 8.0 "
    "--min-driver 535.104 --framework torch>=2.4 --framework jax --python 3.11 --ram 64GB --cpus 8 --os linux "
    "--arch aarch64 --worker-label team=vision --nodes 2 --group-locality spread --bind-cpus --wait-for-worker"
)
ASKED = {
    "accelerator": "cuda",
    "devices": 2,
    "min_vram_bytes": 40_000_000_000,
    "device_names": ["A100*", "H100*"],
    "min_capability": "8.0",
    "min_driver": "535.104",
    "frameworks": ["jax", "torch>=2.4"],
    "python": "==3.11.*",
    "ram_bytes": 64_000_000_000,
    "cpu_cores": 8.0,
    "os": "linux",
    "arch": "arm64",
    "labels": ["team=vision"],
    "nodes": 2,
    "locality": "spread",
    "bind_cpus": True,
}


def test_the_table_and_its_code(gpulayer: Gpulayer, client: Any) -> None:
    client.answers["POST /v1/explain"] = REJECTED
    said = gpulayer("explain", *PLACEMENT.split())
    assert client.bodies == [{"requirements": ASKED, "wait_for_worker": True}]
    assert (said.code, said.err) == (69, "")
    assert said.out.splitlines() == [
        "scheduling: no eligible worker",
        "  gpu-box-1   needs 2 usable cuda devices, worker has 1",
        "  mac-studio  framework 'jax' not installed",
        "nearest: install jax[cuda13] on gpu-box-2",
    ]


@pytest.mark.parametrize("placement", [Placement.PLACED, Placement.WAITING])
def test_what_would_run_or_wait_is_no_failure(gpulayer: Gpulayer, client: Any, placement: Placement) -> None:
    client.answers["POST /v1/explain"] = Explanation(placement=placement, eligible=("box",))
    said = gpulayer("explain")
    assert said.code == 0
    assert said.out.splitlines()[-1] == "  box  eligible"
    assert client.bodies == [{"requirements": {}, "wait_for_worker": False}]


def test_reasons_are_typed_for_programs(gpulayer: Gpulayer, client: Any) -> None:
    client.answers["POST /v1/explain"] = REJECTED
    said = gpulayer("explain", "--json")
    told = json.loads(said.out)
    assert said.code == 69
    assert (told["placement"], told["nearest"]) == ("rejected", "install jax[cuda13] on gpu-box-2")
    assert [(each["code"], each["wanted"], each["found"]) for each in told["reasons"]] == [
        ("device_count", 2, 1),
        ("framework", None, None),
    ]


@pytest.mark.parametrize("command", [("explain",), ("submit",)])
@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--min-vram lots", "--min-vram: 'lots' is no size; write it like 40GB"),
        ("--devices 2", "--devices counts accelerators: name their kind too, like --accelerator cuda"),
        ("--framework pytorch", "--framework: unknown framework 'pytorch': torch, jax, cupy, mlx or tensorflow; did"),
        ("--acelerator cuda", "No such option: --acelerator (Possible options: --accelerator)"),
    ],
)
def test_a_wrong_option_is_one_line(
    gpulayer: Gpulayer, client: Any, command: tuple[str, ...], words: str, line: str
) -> None:
    said = gpulayer(*command, *words.split(), *(["--", "true"] if command == ("submit",) else []))
    assert (said.code, said.out, client.asked) == (2, "", [])
    assert said.err.removeprefix("gpulayer: ").startswith(line)
    assert said.err.count("\n") == 1


def test_submit_takes_the_same_options(gpulayer: Gpulayer, client: Any) -> None:
    assert gpulayer("submit", "-d", *PLACEMENT.split(), "--label", "k=v", "--", "true").code == 0
    spec = client.commands[0].spec("")
    assert (spec.labels, spec.wait_for_worker) == ({"k": "v"}, True)
    told = {name: getattr(spec.requirements, name) for name in ASKED}
    assert {name: list(value) if isinstance(value, tuple) else value for name, value in told.items()} == ASKED


@pytest.mark.parametrize(("words", "what"), [("--array 0-3", "an array"), ("--retries 1", "retries")])
def test_several_machines_at_once_have_no_array_and_no_retries(
    gpulayer: Gpulayer, client: Any, words: str, what: str
) -> None:
    said = gpulayer("submit", "-d", "--nodes", "2", *words.split(), "--", "true")
    assert (said.code, client.commands) == (2, [])
    assert said.err == f"gpulayer: a command on 2 machines at once can't have {what}: leave one of them out\n"


def test_help_shows_every_option(gpulayer: Gpulayer) -> None:
    for command in ("explain", "submit"):
        text = gpulayer(command, "--help").out
        assert [option.flag for option in OPTIONS if f"  {option.flag}" not in text] == []
