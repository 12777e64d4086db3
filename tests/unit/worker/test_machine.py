"""The machine as a worker tells of it: what changes is told, what fails is a problem."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from gpulayer.protocol.types import Framework
from gpulayer_worker import machine as machine_module
from gpulayer_worker.inventory.nvmlguard import NvmlTrouble
from tests.support import fakenvml
from tests.support.fakenvml import GB, card
from tests.support.machinebench import FIRST, SECOND, Bench, run

# ---------------------------------------------------------------- what there is


def test_the_hello_says_what_is_known(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        inventory = bench.machine.inventory
        assert [device.uuid for device in inventory.devices] == [FIRST]
        assert (inventory.region, inventory.zone, inventory.labels) == ("eu", "eu-a", {"team": "vision"})
        assert (inventory.python, inventory.cuda) == ("3.12.1", "12.2")
        assert inventory.probing == ("torch",)
        assert [framework.name for framework in inventory.frameworks] == ["mlx"]
        assert bench.told == []

    run(tmp_path, fakenvml.t4(), test, region="eu", zone="eu-a", labels={"team": "vision"})


def test_a_driver_that_fails_is_a_problem_and_its_devices_come_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_module, "_FIRST_AGAIN_S", 0.01)

    async def test(bench: Bench) -> None:
        assert bench.machine.inventory.devices == ()
        assert bench.machine.inventory.problems == (
            "NVIDIA devices present, NVML failed: Driver/library version mismatch",
        )
        bench.guard.fake.of = fakenvml.t4()
        await bench.until(lambda: bench.told)
        assert bench.told[-1].problems == ()
        assert [device.uuid for device in bench.told[-1].devices] == [FIRST]

    run(tmp_path, fakenvml.broken(), test)


def test_devices_that_nvml_does_not_list_are_a_problem(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        [problem] = bench.machine.inventory.problems
        assert problem.startswith("NVIDIA devices present, NVML lists none of them")

    run(tmp_path, fakenvml.machine(), test)


def test_without_devices_nothing_is_said_of_nvml(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        assert bench.machine.inventory.problems == ()
        await bench.ticked()
        assert len(bench.samples) == 1

    run(tmp_path, fakenvml.broken("NVML Shared Library Not Found") | {"present": False}, test)


def test_a_driver_that_takes_its_time_does_not_hold_up_the_join(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_module, "_JOIN_WAITS_S", 0.01)

    async def test(bench: Bench) -> None:
        bench.guard.open.clear()
        await bench.start()
        assert bench.machine.inventory.problems == ("NVIDIA devices present, NVML has not answered yet",)
        bench.guard.open.set()
        await bench.until(lambda: bench.told)
        assert bench.told[-1].problems == ()
        assert bench.told[-1].devices

    run(tmp_path, fakenvml.t4(), test, started=False)


def test_that_there_are_devices_is_told_as_soon_as_it_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine not even that is known within the time that a join waits."""
    monkeypatch.setattr(machine_module, "_JOIN_WAITS_S", 0.01)

    async def test(bench: Bench) -> None:
        bench.guard.starts.clear()
        await bench.start()
        assert bench.machine.inventory.problems == ()
        bench.guard.open.clear()
        bench.guard.starts.set()
        await asyncio.sleep(0)
        await bench.ticked()
        assert bench.told[-1].problems == ("NVIDIA devices present, NVML has not answered yet",)
        bench.guard.open.set()
        await bench.until(lambda: bench.told[-1].devices)
        assert bench.told[-1].problems == ()

    run(tmp_path, fakenvml.t4(), test, started=False)


def test_a_driver_that_fails_later_leaves_its_devices_shown_as_sick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_module, "_FIRST_AGAIN_S", 0.01)

    async def test(bench: Bench) -> None:
        bench.guard.fake.of, bench.guard.nvml = fakenvml.broken("GPU is lost"), None
        await bench.ticked()
        await bench.until(lambda: bench.told)
        assert bench.told[-1].problems == ("NVIDIA devices present, NVML failed: GPU is lost",)
        assert [(device.uuid, device.sick) for device in bench.told[-1].devices] == [
            (FIRST, "NVML failed: GPU is lost")
        ]
        bench.guard.fake.of = fakenvml.t4()
        await bench.until(lambda: not bench.sick)
        assert bench.told[-1].problems == ()

    run(tmp_path, fakenvml.t4(), test)


def test_a_device_that_is_gone_is_sick_and_slices_made_anew_are_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_module, "_HEALTH_EVERY", 1)

    async def test(bench: Bench) -> None:
        remade = fakenvml.mig(1)
        remade["cards"][0]["slices"][0]["uuid"] = "MIG-new"
        del remade["cards"][1]
        bench.guard.fake.of = remade
        await bench.ticked()
        await bench.until(lambda: len(bench.told) and bench.told[-1].devices[0].uuid == "MIG-new")
        assert [(device.uuid, device.sick) for device in bench.told[-1].devices] == [
            ("MIG-new", ""),
            (SECOND, "it is gone: NVML does not list it any more"),
        ]

    run(tmp_path, fakenvml.mig(), test)


# ---------------------------------------------------------------- probes


def test_each_probe_that_comes_through_is_told(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        await asyncio.sleep(0)
        torch = Framework(name="torch", version="2.9", works=("cpu", "cuda"), devices=(FIRST,))
        bench.prober.pending.clear()
        bench.prober.tell(torch)
        assert bench.told[-1].probing == ()
        assert torch in bench.told[-1].frameworks
        bench.prober.tell(Framework(name="torch"))  # it was removed
        assert [framework.name for framework in bench.told[-1].frameworks] == ["mlx"]

    run(tmp_path, fakenvml.t4(), test)


def test_a_device_on_which_a_framework_fails_alone_is_looked_at(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        await asyncio.sleep(0)
        bench.prober.verdicts[SECOND] = "CUDA error: unknown error"
        torch = Framework(name="torch", version="2.9", works=("cuda",), devices=(FIRST,))
        bench.prober.tell(torch)  # of the other one it says nothing: that came after it was probed
        await bench.ticked()
        assert bench.prober.probed == []
        bench.prober.tell(replace(torch, problems={"cuda": "cuda:1: unknown error"}))
        assert bench.sick == {}
        await bench.ticked()
        assert bench.sick == {SECOND: "CUDA error: unknown error"}

    run(tmp_path, fakenvml.machine(card(0), card(1)), test)


def test_what_was_probed_before_a_device_came_is_probed_on_it_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a job that wants torch on CUDA were rejected for good: until then torch works on the CPU only."""
    monkeypatch.setattr(machine_module, "_JOIN_WAITS_S", 0.01)

    async def test(bench: Bench) -> None:
        bench.prober.pending.clear()
        bench.prober.seen.clear()
        bench.guard.open.clear()
        await bench.start()
        assert bench.machine.inventory.probing == ()
        bench.guard.open.set()
        await bench.until(lambda: bench.told)
        assert [(len(told.devices), told.probing) for told in bench.told] == [(1, ("late",))]
        assert bench.prober.anew == []  # what an agent before us found there may still hold
        bench.prober.seen.append(FIRST)
        bench.prober.tell(Framework(name="torch", version="2.9", works=("cpu", "cuda"), devices=(FIRST,)))
        assert bench.told[-1].probing == ()

    run(tmp_path, fakenvml.t4(), test, started=False)


def test_a_device_that_is_back_is_computed_on_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_module, "_HEALTH_EVERY", 1)

    async def test(bench: Bench) -> None:
        both = bench.guard.fake.of
        bench.guard.fake.of = fakenvml.t4()
        await bench.ticked()
        await bench.until(lambda: SECOND in bench.sick)
        assert bench.prober.anew == []
        bench.guard.fake.of = both
        await bench.ticked()
        await bench.until(lambda: not bench.sick)
        assert bench.prober.anew == [SECOND]

    run(tmp_path, fakenvml.machine(card(0), card(1)), test)


def test_an_interpreter_that_fails_and_is_back_is_told(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        await asyncio.sleep(0)
        bench.prober.asked = SimpleNamespace(python="", problem="the interpreter for jobs, /x, does not say")
        bench.prober.tell_asked()
        assert bench.told[-1].problems == ("the interpreter for jobs, /x, does not say",)
        bench.prober.asked = SimpleNamespace(python="3.13.0", problem="")
        bench.prober.tell_asked()
        assert (bench.told[-1].python, bench.told[-1].problems) == ("3.13.0", ())

    run(tmp_path, fakenvml.t4(), test)


# ---------------------------------------------------------------- samples


def test_samples_show_devices_and_are_sent_when_something_is_different(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_module, "noticeable", lambda before, now: before.devices != now.devices)

    async def test(bench: Bench) -> None:
        await bench.ticked()
        assert bench.samples[-1].devices[0].used_bytes == 0
        await bench.ticked()
        assert len(bench.samples) == 1
        bench.guard.fake.of["cards"][0]["used"] = 3 * GB
        await bench.ticked()
        assert [sample.devices[0].used_bytes for sample in bench.samples] == [0, 3 * GB]

    run(tmp_path, fakenvml.t4(), test)


def test_one_is_sent_every_ten_seconds_whatever_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_module, "noticeable", lambda before, now: False)

    async def test(bench: Bench) -> None:
        await bench.ticked()
        bench.machine._sent_at_s -= 10.0
        await bench.ticked()
        assert len(bench.samples) == 2

    run(tmp_path, fakenvml.t4(), test)


def test_out_of_touch_none_is_taken_and_the_first_one_after_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_module, "noticeable", lambda before, now: False)

    async def test(bench: Bench) -> None:
        await bench.ticked()
        asked = len(bench.guard.fake.calls)
        bench.machine.tick(connected=False)
        assert len(bench.guard.fake.calls) == asked
        await bench.ticked()
        assert len(bench.samples) == 2

    run(tmp_path, fakenvml.t4(), test)


def test_a_devices_use_is_asked_for_by_uuid(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        bench.guard.fake.of["cards"][0] |= {"used": GB, "processes": [[5, GB]]}
        use = await bench.machine.use(FIRST)
        assert (use.used_bytes, use.processes) == (GB, ((5, GB),))

    run(tmp_path, fakenvml.t4(), test)


def test_a_job_that_ends_while_its_devices_use_is_asked_for_cuts_off_no_question(tmp_path: Path) -> None:
    """The guard would give up the process that asks, and with it what that knows."""

    async def test(bench: Bench) -> None:
        bench.guard.open.clear()
        asking = asyncio.ensure_future(bench.machine.use(FIRST))
        await asyncio.sleep(0)  # it asks
        [question] = bench.machine._asking
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        bench.guard.open.set()
        await question
        assert bench.guard.cut_off == 0

    run(tmp_path, fakenvml.t4(), test)


def test_a_device_whose_use_is_not_told_has_nvml_asked_for_the_devices(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        bench.guard.fake.of = fakenvml.broken("GPU is lost")
        bench.guard.nvml = None
        with pytest.raises(NvmlTrouble, match="GPU is lost"):
            await bench.machine.use(FIRST)
        await bench.until(lambda: bench.told)
        assert bench.sick == {FIRST: "NVML failed: GPU is lost"}

    run(tmp_path, fakenvml.t4(), test)
