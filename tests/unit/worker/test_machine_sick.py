"""Devices that fall sick: each alone, until it was probed, also across agents."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gpulayer.protocol.types import Outcome, State
from gpulayer_worker import machine as machine_module
from gpulayer_worker.layout import Layout
from tests.support import fakenvml
from tests.support.fakenvml import card
from tests.support.machinebench import FAILED, FIRST, SECOND, Bench, Prober, run


def test_a_card_whose_counters_say_so_is_sick_until_they_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_module, "_HEALTH_EVERY", 1)

    async def test(bench: Bench) -> None:
        cards = bench.guard.fake.of["cards"]
        cards[1]["ecc"] = 2
        await bench.ticked()
        assert list(bench.sick) == [SECOND]
        assert bench.sick[SECOND].startswith("2 uncorrected ECC errors")
        assert bench.told[-1] == bench.machine.inventory
        cards[1]["ecc"] = 0
        await bench.ticked()
        assert bench.sick == {}

    run(tmp_path, fakenvml.machine(card(0), card(1)), test)


def test_an_xid_quarantines_its_device_alone_until_a_probe_passes(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        bench.prober.verdicts[SECOND] = "it computed 3 instead of 4"
        bench.guard.fake.of["xids"] = [[1, 94]]
        await bench.ticked()
        assert bench.sick == {SECOND: "Xid 94: contained ECC error"}
        await bench.ticked()
        assert bench.sick == {SECOND: "it computed 3 instead of 4"}
        assert bench.prober.probed == [SECOND]
        bench.prober.verdicts[SECOND] = ""
        bench.machine._quarantine._patients[SECOND].due_s = 0.0
        await bench.ticked()
        assert bench.sick == {}
        assert SECOND in bench.prober.anew  # what is known of frameworks there is of another time

    run(tmp_path, fakenvml.machine(card(0), card(1)), test)


def test_a_job_that_smells_has_its_device_probed_and_the_programs_own_faults_do_not(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        first, second = bench.machine.inventory.devices
        own = Outcome(state=State.FAILED, error="RuntimeError: CUDA error: device-side assert triggered")
        bench.machine.ended([first], own)
        bench.machine.ended([first], Outcome(state=State.SUCCEEDED, tail=FAILED.error))
        bench.machine.ended([second], FAILED)
        assert bench.sick == {SECOND: f"a job on it ended with: {FAILED.error}"}
        await bench.ticked()
        assert bench.prober.probed == [SECOND]
        assert bench.sick == {}  # it works

    run(tmp_path, fakenvml.machine(card(0), card(1)), test)


def test_the_next_agent_goes_on_with_what_was_sick(tmp_path: Path) -> None:
    async def falls(bench: Bench) -> None:
        bench.prober.verdicts[FIRST] = "no answer"
        bench.machine.ended(bench.machine.inventory.devices, FAILED)
        await bench.ticked()
        assert bench.sick == {FIRST: "no answer"}

    async def comes(bench: Bench) -> None:
        assert bench.sick == {FIRST: "no answer"}  # in the hello already
        await bench.ticked()
        assert bench.sick == {}

    async def is_well(bench: Bench) -> None:
        assert bench.sick == {}

    for test in (falls, comes, is_well):
        run(tmp_path, fakenvml.t4(), test)


def test_an_agent_that_ends_while_a_device_is_probed_leaves_it_sick(tmp_path: Path) -> None:
    async def ends(bench: Bench) -> None:
        bench.prober.hold.clear()
        bench.machine.ended(bench.machine.inventory.devices, FAILED)
        bench.machine._quarantine._patients[FIRST].since_s -= 3600.0
        bench.machine.tick(connected=False)
        await asyncio.sleep(0)
        assert bench.prober.probed == [FIRST]

    async def comes(bench: Bench) -> None:
        assert list(bench.sick) == [FIRST]

    for test in (ends, comes):
        run(tmp_path, fakenvml.t4(), test)


def test_a_sick_device_that_nvml_tells_late_is_sick_until_it_was_probed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_module, "_JOIN_WAITS_S", 0.01)

    async def falls(bench: Bench) -> None:
        bench.machine.ended(bench.machine.inventory.devices, FAILED)

    async def comes_late(bench: Bench) -> None:
        bench.guard.open.clear()
        await bench.start()
        for _ in range(3):
            for patient in bench.machine._quarantine._patients.values():
                patient.since_s, patient.due_s = -3600.0, 0.0
            bench.machine.tick(connected=False)
            await asyncio.sleep(0)
        bench.guard.open.set()
        await bench.until(lambda: bench.told and bench.told[-1].devices)
        assert (list(bench.sick), bench.prober.probed) == ([FIRST], [])

    run(tmp_path, fakenvml.t4(), falls)
    run(tmp_path, fakenvml.t4(), comes_late, started=False)


def test_a_sick_device_that_the_machine_does_not_have_any_more_is_forgotten(tmp_path: Path) -> None:
    async def falls(bench: Bench) -> None:
        bench.machine.ended(bench.machine.inventory.devices, FAILED)

    async def without(bench: Bench) -> None:
        await bench.machine.settled()
        await bench.ticked()
        assert bench.machine._quarantine.note() == {"sick": {}}

    run(tmp_path, fakenvml.t4(), falls)
    run(tmp_path, fakenvml.machine(card(1)), without)


def test_a_full_disk_keeps_no_device_from_falling_sick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    async def test(bench: Bench) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Layout, "note", full)
            bench.machine.ended(bench.machine.inventory.devices, FAILED)
        assert list(bench.sick) == [FIRST]

    run(tmp_path, fakenvml.t4(), test)


def test_a_probe_that_could_not_be_made_says_nothing_of_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(self: Prober, uuid: str) -> str:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(Prober, "probe_device", fails)

    async def test(bench: Bench) -> None:
        bench.machine.ended(bench.machine.inventory.devices, FAILED)
        bench.machine._quarantine._patients[FIRST].since_s -= 3600.0
        await bench.ticked()
        assert list(bench.sick) == [FIRST]

    run(tmp_path, fakenvml.t4(), test)
