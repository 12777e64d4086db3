"""What `gpulayer explain` prints of the recorded fleet.

After a change of words: once with GPULAYER_WRITE_EXPLAINED=1, and read what changed.
"""

from __future__ import annotations

import os
import shlex
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpulayer.cli import common
from gpulayer.cli.__main__ import run
from gpulayer.client.asks import Ask
from gpulayer.protocol.messages import Sampled
from gpulayer.protocol.types import Requirements, Sample
from gpulayer_server.core.events import WorkerConnected, WorkerSaid
from gpulayer_server.core.explaining import explanation
from gpulayer_server.core.plane import Plane
from gpulayer_worker.inventory.topo import parse
from tests.support.fleets import FOLDER, NAMES, candidate, fleet, hello, recorded

EXPLAINED = {path.stem: path for path in sorted((FOLDER / "explained").glob("*.txt"))}
#: Recorded topologies, by the machine that has them.
TOPOLOGIES = {
    "a6000-box": "a6000-3gpu",
    "dgx1": "dgx1-v100-8gpu",
    "h100-node": "hgx-h100-8gpu",
    "h100-node-2": "hgx-h100-8gpu",
    "pcie-box": "pcie-8gpu",
    "rtx5090-box": "rtx5090-2gpu",
    "t4-box": "t4-1gpu",
}


class _Asked(msgspec.Struct):
    requirements: Requirements
    wait_for_worker: bool = False


class Fleet:
    """A client of a control plane that knows the recorded fleet."""

    def __init__(self) -> None:
        self.now = recorded(NAMES[0]).last_seen_at
        self.plane = Plane(epoch=1, now=self.now)
        for conn, view in enumerate(fleet(), 1):
            self.plane.handle(WorkerConnected(conn=conn, hello=hello(view), acked={}), self.now)
            self.plane.handle(WorkerSaid(conn=conn, messages=(Sampled(sample=view.sample or Sample()),)), self.now)
            worker = self.plane.workers[view.id]
            for holder, claim in candidate(view).claims.items():
                worker.take(holder, claim)
            self.plane.room.touched(worker)

    def ask(self, ask: Ask[Any]) -> Any:
        """The answer to 'explain', as it would come by HTTP."""
        asked = msgspec.json.decode(ask.content or b"", type=_Asked)
        answer = explanation(self.plane, asked.requirements, "ana", self.now, wait_for_worker=asked.wait_for_worker)
        return ask.answer(200, msgspec.json.encode(answer))


@pytest.mark.parametrize("name", EXPLAINED)
def test_the_table_is_as_recorded(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path: Path = EXPLAINED[name]
    line = path.read_text().splitlines()[0]
    monkeypatch.setattr(common, "open_client", lambda: nullcontext(Fleet()))
    monkeypatch.setenv("COLUMNS", "110")
    code = run(shlex.split(line)[2:])
    printed = f"{line}\n{capsys.readouterr().out}exit code {code}\n"
    if os.environ.get("GPULAYER_WRITE_EXPLAINED"):
        path.write_text(printed)
    assert path.read_text() == printed


def test_what_is_free_of_a_recorded_machine_is_what_nobody_holds() -> None:
    for name in NAMES:
        view = recorded(name)
        worker = candidate(view)
        assert tuple(device.uuid for device in worker.devices_free) == view.devices_free, name
        assert worker.slots_free == view.slots_free, name
        assert worker.ram_declared_bytes == view.ram_declared_bytes, name
        assert hello(view).inventory == view.inventory


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_the_links_of_a_recorded_machine_are_those_of_its_topology(name: str) -> None:
    inventory = recorded(name).inventory
    text = (FOLDER / "topologies" / f"{TOPOLOGIES[name]}.txt").read_text()
    found = parse(text, [device.uuid for device in inventory.devices])
    assert inventory.links == found.links
    assert [device.numa for device in inventory.devices] == [found.seats[d.uuid].numa for d in inventory.devices]


def test_the_docs_show_the_recorded_tables() -> None:
    text = (FOLDER.parents[1] / "docs" / "placement.md").read_text()
    shown = text.split("    $ gpulayer explain ")[1:]
    assert shown
    recordings = {path.read_text().splitlines()[0]: path.read_text() for path in EXPLAINED.values()}
    for block in shown:
        lines = [f"$ gpulayer explain {block.splitlines()[0]}"]
        lines += [line[4:] for line in block.splitlines()[1:] if line.startswith("    ")]
        recording = recordings[lines[0]].splitlines()[:-1]  # without the exit code
        assert lines[: len(recording)] == recording
