"""The machine as a worker tells of it: what changes is told, what fails is a problem, what is sick is alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from gpulayer.protocol.types import Framework, Inventory, Outcome, Sample, State
from gpulayer_worker import machine as machine_module
from gpulayer_worker.inventory.nvml import Nvml
from gpulayer_worker.inventory.nvmlchild import answer
from gpulayer_worker.inventory.nvmlguard import NvmlGuard, NvmlTrouble
from gpulayer_worker.layout import Layout
from gpulayer_worker.machine import Machine
from gpulayer_worker.options import Options
from tests.support import fakenvml
from tests.support.fakenvml import GB, Fake, card

FIRST, SECOND = card(0)["uuid"], card(1)["uuid"]
FAILED = Outcome(state=State.FAILED, error="CUDA error: uncorrectable ECC error encountered")


class Guard(NvmlGuard):
    """Asks a made-up NVML in this process."""

    def __init__(self, of: fakenvml.Machine):
        super().__init__()
        self.fake = Fake(of)
        self.nvml: Nvml | None = None
        self.open = asyncio.Event()  # until it is set nobody is answered
        self.open.set()

    async def ask(self, question: dict[str, Any], deadline_s: float) -> dict[str, Any]:
        self.present = self.fake.of["present"]
        await self.open.wait()
        try:
            self.nvml = self.nvml or Nvml(self.fake)
            return json.loads(json.dumps(answer(self.nvml, question)))
        except fakenvml.NVMLError as error:
            self.nvml = None
            raise NvmlTrouble(str(error)) from error


class Prober:
    """Probes as it is told to."""

    def __init__(self) -> None:
        self.verdicts: dict[str, str] = {}  # by UUID; '' works
        self.probed: list[str] = []
        self.anew: list[str] = []
        self.seen: list[str] = [FIRST, SECOND]  # devices of which something is known
        self.tell: Callable[[Framework], None] = lambda _: None
        self.tell_asked: Callable[[], None] = lambda: None
        self.pending = {"torch"}
        self.asked: Any = SimpleNamespace(python="3.12.1", problem="")
        self.hold = asyncio.Event()  # until it is set no probe of a device ends
        self.hold.set()

    def packages(self) -> Any:
        return self.asked

    def probing(self, inventory: Inventory) -> tuple[str, ...]:
        late = {device.uuid for device in inventory.devices} - set(self.seen)
        return tuple(sorted(self.pending | ({"late"} if late else set())))

    def known(self, inventory: Inventory) -> tuple[Framework, ...]:
        return (Framework(name="mlx", version="0.30"),)

    async def watch(
        self, inventory: Callable[[], Inventory], tell: Callable[[Framework], None], asked: Callable[[], None]
    ) -> None:
        self.tell, self.tell_asked = tell, asked
        await asyncio.Event().wait()

    def again(self, uuid: str) -> None:
        self.anew.append(uuid)

    async def probe_device(self, uuid: str) -> str:
        self.probed.append(uuid)
        await self.hold.wait()
        return self.verdicts.get(uuid, "")


class Bench:
    """A machine, and what it told."""

    def __init__(self, folder: Path, of: fakenvml.Machine, **options: Any):
        self.guard, self.prober = Guard(of), Prober()
        self.told: list[Inventory] = []
        self.samples: list[Sample] = []
        self.news = asyncio.Event()
        self.machine = Machine(
            Options(data=folder, name="w", slots=1, python="python", **options),
            Layout(folder),
            {"NO_GCE_CHECK": "true"},
            changed=self._changed,
            measured=self._measured,
            prober=self.prober,
            guard=self.guard,
        )

    def _changed(self, inventory: Inventory) -> None:
        self.told.append(inventory)
        self.news.set()

    def _measured(self, sample: Sample) -> None:
        self.samples.append(sample)
        self.news.set()

    async def start(self) -> None:
        await self.machine.start()
        self.machine.open()

    async def until(self, what: Callable[[], Any]) -> None:
        """Wait for news until it is so."""
        while not what():
            self.news.clear()
            await self.news.wait()

    async def ticked(self) -> None:
        """One second, and all that comes of it."""
        before = set(self.machine._tasks)
        self.machine.tick(connected=True)
        await asyncio.gather(*(self.machine._tasks - before))

    @property
    def sick(self) -> dict[str, str]:
        return {device.uuid: device.sick for device in self.machine.inventory.devices if device.sick}


def run(
    folder: Path,
    of: fakenvml.Machine,
    test: Callable[[Bench], Awaitable[None]],
    *,
    started: bool = True,
    **options: Any,
) -> None:
    async def go() -> None:
        bench = Bench(folder, of, **options)
        try:
            if started:
                await bench.start()
            await test(bench)
        finally:
            bench.guard.open.set()
            await bench.machine.close()

    asyncio.run(go())


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


# ---------------------------------------------------------------- sick devices


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
