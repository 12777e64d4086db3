"""`gpulayer resources`: the machines, once and as they fare, and this one."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from gpulayer.cli import elsewhere
from gpulayer.cli.live import watch_machines
from gpulayer.client.errors import ControlPlaneError, NobodyAnswers
from gpulayer.protocol.types import Explanation, Inventory, Placement, Sample, WorkerView

Gpulayer = Callable[..., Any]

INVENTORY = Inventory(host="box", os="linux", arch="x86_64", cpu_cores=2, ram_bytes=8_000_000_000, python="3.11")
BOX = WorkerView(id="w", name="box", connected=True, slots=2, slots_free=2, inventory=INVENTORY)


def test_the_first_look_waits_for_this_machines_worker(
    gpulayer: Gpulayer, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = [[], [BOX]]
    monkeypatch.setattr(client, "workers", lambda: seen.pop(0))
    client.answers["POST /v1/explain"] = Explanation(placement=Placement.PLACED, eligible=("box",))
    assert gpulayer("resources", "list").out.splitlines()[0] == "● box · 2 of 2 slots free"


def test_machines_once(gpulayer: Gpulayer, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client.answers["POST /v1/explain"] = Explanation(placement=Placement.WAITING)
    assert gpulayer("resources", "list").out == "no machines yet: gpulayer up prints the line that adds one\n"
    monkeypatch.setattr(client, "workers", lambda: [BOX])
    assert gpulayer("resources", "list").out.splitlines() == ["● box · 2 of 2 slots free", "    2 cores · RAM 8 GB"]
    assert json.loads(gpulayer("resources", "list", "--json").out)[0]["sample"] is None


class Fleet:
    """What a control plane answers, look after look; the last look is ended by Ctrl-C."""

    def __init__(self, *looks: list[WorkerView] | Exception):
        self._looks = list(looks)
        self.pauses: list[float] = []
        self.api = SimpleNamespace(ask=self._ask)

    def workers(self) -> list[WorkerView]:
        return self._ask(None, patience_s=1.0)

    def _ask(self, ask: Any, *, patience_s: float) -> list[WorkerView]:
        look = self._looks.pop(0)
        if isinstance(look, Exception):
            raise look
        return look

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if not self._looks:
            raise KeyboardInterrupt


def watched(fleet: Fleet, capsys: pytest.CaptureFixture[str], *, json: bool = False) -> list[str]:
    client: Any = fleet
    watch_machines(client, json=json, pause=fleet.pause)
    return capsys.readouterr().out.splitlines()


BUSY = replace(BOX, slots_free=1, sample=Sample(cpu=0.5))


def test_elsewhere_than_on_a_terminal_each_change_is_a_block(capsys: pytest.CaptureFixture[str]) -> None:
    fleet = Fleet([BOX], [BOX], [BUSY], [BUSY])
    assert watched(fleet, capsys) == [
        "● box · 2 of 2 slots free",
        "    2 cores · RAM 8 GB",
        "",
        "● box · 1 of 2 slots free",
        "    CPU 50% of 2 cores · RAM 8 GB",
    ]
    assert fleet.pauses == [1.0] * 4


def test_for_programs_each_change_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    lines = watched(Fleet([BOX], [BOX], [BUSY]), capsys, json=True)
    assert [json.loads(line)[0]["slots_free"] for line in lines] == [2, 1]


def test_a_control_plane_that_is_away_for_a_while_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    fleet = Fleet([BOX], NobodyAnswers("x"), NobodyAnswers("x"), [BOX])
    lines = watched(fleet, capsys)
    assert [line[0] for line in lines if line and line[0] != " "] == ["●", "◌", "●", "●"]
    assert lines[3] == "◌ control plane out of reach; what is shown may have changed"


def test_one_that_never_answered_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ControlPlaneError):
        watched(Fleet(ControlPlaneError("nobody answers")), capsys)


def test_on_a_terminal_it_is_drawn_in_place(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    client: Any = Fleet([BOX], [BUSY])
    watch_machines(client, pause=client.pause)
    out = capsys.readouterr().out
    assert "2 of 2 slots free" in out
    assert "1 of 2 slots free" in out
    assert "\x1b[" in out  # it goes back up


# ---------------------------------------------------------------- this machine


@pytest.fixture
def detected(monkeypatch: pytest.MonkeyPatch) -> None:
    class Entry:
        def load(self) -> Callable[[], tuple[Inventory, Sample]]:
            return lambda: (INVENTORY, Sample(cpu=0.5))

    monkeypatch.setattr(
        elsewhere.importlib.metadata, "entry_points", lambda group, name: [Entry()] if name == "detect" else []
    )


@pytest.mark.usefixtures("detected")
def test_this_machine(gpulayer: Gpulayer) -> None:
    said = gpulayer("resources", "detect")
    assert (said.code, said.err) == (0, "")
    assert said.out.splitlines()[:2] == ["box · linux x86_64 · Python 3.11 for jobs", "  CPU 50% of 2 cores · RAM 8 GB"]
    told = json.loads(gpulayer("resources", "detect", "--json").out)
    assert (told["inventory"]["cpu_cores"], told["sample"]["cpu"]) == (2, 0.5)


def test_where_no_worker_is_installed_that_is_said(gpulayer: Gpulayer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elsewhere.importlib.metadata, "entry_points", lambda group, name: [])
    said = gpulayer("resources", "detect")
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert "gpulayer resources detect is not installed here" in said.err
