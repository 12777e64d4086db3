"""Constraints on the machine itself: each in words, with numbers on both sides, and the step that mends it."""

from __future__ import annotations

from typing import Any

import pytest

from gpulayer.protocol.types import Requirements
from gpulayer_server.scheduling.match import fits, unmet
from tests.support.boxes import GB, box

CASES: list[tuple[dict[str, Any], dict[str, Any], str, str, Any, Any, str]] = [
    (
        {"os": "linux"},
        {"os": "darwin"},
        "os",
        "needs linux, worker runs darwin",
        "linux",
        "darwin",
        "add a machine with linux, or leave out the operating system",
    ),
    (
        {"arch": "arm64"},
        {},
        "arch",
        "needs arm64, worker is x86_64",
        "arm64",
        "x86_64",
        "add a machine with arm64, or leave out the architecture",
    ),
    (
        {"python": ">=3.12"},
        {},
        "python",
        "needs Python >=3.12, worker has 3.11.9",
        ">=3.12",
        "3.11.9",
        "install Python >=3.12 on gpu-box-1 and start its worker with it",
    ),
    (
        {"python": ">=3.12"},
        {"python": ""},
        "python",
        "needs Python >=3.12, worker has one of unknown version",
        ">=3.12",
        None,
        "install Python >=3.12 on gpu-box-1 and start its worker with it",
    ),
    (
        {"ram_bytes": 128 * GB},
        {"ram_bytes": 67_430_000_000},
        "ram",
        "needs 128 GB of memory, worker has 67.4 GB",
        128 * GB,
        67_430_000_000,
        "ask for 67.4 GB of memory, which gpu-box-1 has",
    ),
    (
        {"cpu_cores": 32.0},
        {},
        "cpu",
        "needs 32 cores, worker has 16",
        32.0,
        16,
        "ask for 16 cores, which gpu-box-1 has",
    ),
    (
        {"labels": ("team=vision",)},
        {},
        "label",
        "needs label team=vision, worker has no label team",
        "team=vision",
        None,
        "start the worker of gpu-box-1 with --label team=vision",
    ),
    (
        {"labels": ("team=vision",)},
        {"labels": {"team": "audio"}},
        "label",
        "needs label team=vision, worker has label team with 'audio'",
        "team=vision",
        "audio",
        "start the worker of gpu-box-1 with --label team=vision",
    ),
]


@pytest.mark.parametrize(("asked", "machine", "code", "text", "wanted", "found", "remedy"), CASES)
def test_what_the_machine_lacks(
    asked: dict[str, Any], machine: dict[str, Any], code: str, text: str, wanted: Any, found: Any, remedy: str
):
    requirements, worker = Requirements(**asked), box(**machine)
    [reason] = unmet(requirements, worker)
    assert not fits(requirements, worker)
    assert (reason.code, reason.text, reason.wanted, reason.found) == (code, text, wanted, found)
    assert (reason.remedy, reason.temporary) == (remedy, False)


@pytest.mark.parametrize(
    ("asked", "machine"),
    [
        ({"os": "macos"}, {"os": "darwin"}),
        ({"os": "Linux"}, {}),
        ({"arch": "aarch64"}, {"arch": "arm64"}),
        ({"arch": "arm64"}, {"arch": "aarch64"}),
        ({"arch": "amd64"}, {}),
        ({"python": ">=3.10,<3.12"}, {}),
        ({"python": "==3.11.*"}, {}),
        ({"python": ">=3.13"}, {"python": "3.13.0+"}),
        ({"python": ">=3.10"}, {"python": "3.15.0a1"}),
        ({"ram_bytes": 64 * GB}, {}),
        ({"cpu_cores": 16.0}, {}),
        ({"cpu_cores": 0.5}, {}),
        ({"labels": ("team=vision", "rack=")}, {"labels": {"team": "vision", "rack": "", "more": "x"}}),
        ({"labels": ("url=a=b",)}, {"labels": {"url": "a=b"}}),
    ],
)
def test_what_fits(asked: dict[str, Any], machine: dict[str, Any]):
    assert unmet(Requirements(**asked), box(**machine)) == []
    assert fits(Requirements(**asked), box(**machine))


def test_every_label_that_is_missing_is_told():
    reasons = unmet(Requirements(labels=("a=1", "b=2", "c=3")), box(labels={"b": "2"}))
    assert [reason.wanted for reason in reasons] == ["a=1", "c=3"]
