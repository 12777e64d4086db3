"""Links that NVML does not tell are taken from `nvidia-smi topo -m`, where that is there."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gpulayer_worker.inventory.collect import host, nvidia_devices
from gpulayer_worker.inventory.nvidia import Found
from gpulayer_worker.inventory.nvml import Nvml
from gpulayer_worker.inventory.nvmlguard import NvmlGuard
from tests.support import fakenvml
from tests.support.fakenvml import Fake, card

SAID = """\
\tGPU0\tGPU1\tGPU2\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV4\tNODE\t0-31\t1
GPU1\tNV4\t X \tNODE\t0-31\t1
GPU2\tNODE\tNODE\t X \t0-31\t1
"""


class Guard(NvmlGuard):
    """Answers from this process."""

    def __init__(self, of: fakenvml.Machine):
        super().__init__()
        self.nvml = Nvml(Fake(of))

    async def ask(self, question: dict[str, Any], deadline_s: float) -> dict[str, Any]:
        return json.loads(json.dumps(self.nvml.machine()))


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An `nvidia-smi` that notes that it was asked."""
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho $@ >> {tmp_path}/asked\ncat <<'END'\n{SAID}END\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path / "asked"


def look(of: fakenvml.Machine, environ: dict[str, str] | None = None) -> Found:
    return asyncio.run(nvidia_devices(Guard(of), environ or {}, 1.0, Path("/nowhere")))


def kinds(here: Found) -> list[tuple[str, int]]:
    return [(link.kind, link.count) for link in here.links]


def test_where_nvml_tells_of_no_links_the_other_does(smi: Path) -> None:
    here = look(fakenvml.machine(card(0), card(1), card(2)))
    assert kinds(here) == [("NV", 4), ("NODE", 1), ("NODE", 1)]
    assert [device.numa for device in here.devices] == [1, 1, 1]
    assert smi.read_text() == "topo -m\n"


def test_what_nvml_tells_counts_but_for_nvlinks_whose_ends_it_does_not_know(smi: Path) -> None:
    levels = {"0-1": 50, "0-2": 30, "1-2": 30}
    cards = [card(n, nvlinks=["00000000:EE:00.0"] * 4 if n < 2 else []) for n in range(3)]
    assert kinds(look(fakenvml.machine(*cards, levels=levels))) == [("NV", 4), ("PHB", 1), ("PHB", 1)]


def test_nobody_else_is_asked_where_nvml_tells_all(smi: Path) -> None:
    assert len(look(fakenvml.dgx1()).links) == 28
    assert len(look(fakenvml.t4()).devices) == 1
    assert not smi.exists()


def test_cards_that_are_masked_keep_their_places(smi: Path) -> None:
    here = look(fakenvml.machine(card(0), card(1), card(2)), {"CUDA_VISIBLE_DEVICES": "1,2"})
    assert kinds(here) == [("NODE", 1)]


def test_without_the_program_links_stay_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    here = look(fakenvml.machine(card(0), card(1)))
    assert (len(here.devices), here.links) == (2, ())


def test_a_program_that_can_not_be_started_leaves_links_unknown(smi: Path) -> None:
    (smi.parent / "nvidia-smi").write_bytes(b"\x7fELF of another machine")
    here = look(fakenvml.machine(card(0), card(1)))
    assert (len(here.devices), here.links) == (2, ())


def test_the_machine_is_described() -> None:
    found = host()
    assert found.os in ("linux", "darwin")
    assert found.cpu_cores >= 1
    assert found.ram_bytes > 1 << 28
    assert found.host
