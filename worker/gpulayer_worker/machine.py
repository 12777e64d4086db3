"""The machine as this worker tells of it: what it has, how it fares, which devices are sick. One for each agent.

Nothing here delays the join: what is not known when the worker says hello is told later.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from gpulayer.protocol.types import Device, Framework, Inventory, Outcome, Sample, State
from gpulayer_worker.inventory import location
from gpulayer_worker.inventory.amd import amd_devices
from gpulayer_worker.inventory.amdchild import devices_present as amd_present
from gpulayer_worker.inventory.apple import apple_devices
from gpulayer_worker.inventory.collect import host, nvidia_devices
from gpulayer_worker.inventory.nvidia import Found
from gpulayer_worker.inventory.nvmlguard import NvmlGuard, NvmlTrouble, nothing_to_ask
from gpulayer_worker.inventory.prober import Prober
from gpulayer_worker.inventory.sampling import DeviceUse, Sampler, noticeable
from gpulayer_worker.inventory.strangers import Foreigners
from gpulayer_worker.layout import Layout
from gpulayer_worker.options import Options
from gpulayer_worker.quarantine import Quarantine, left_out, mended, smell

log = logging.getLogger("gpulayer.worker")

_JOIN_WAITS_S = 2.0  # for NVML, which mostly answers within this
_START_S = 30.0  # drivers that keep nothing between programs take long for their first answer
_SAMPLE_S = 5.0
_FIRST_AGAIN_S, _LAST_AGAIN_S = 15.0, 600.0  # between tries of an NVML that fails
_HEALTH_EVERY = 10  # samples
_SENT_AT_LEAST_S = 10.0
_NONE_LISTED = "NVIDIA devices present, NVML lists none of them: restart the machine, or start its container with them"
_UNKNOWN = Inventory(host="", os="", arch="", cpu_cores=1, ram_bytes=0, python="")


class _Uses(msgspec.Struct, frozen=True, kw_only=True):
    """The child's answer to 'sample'."""

    devices: tuple[DeviceUse, ...] = ()
    xids: tuple[tuple[str, str], ...] = ()  # UUID, what happened
    sick: dict[str, str] | None = None  # by UUID of the card
    changed: bool = False  # other devices are listed


class Machine:
    """Owns what is known of the machine. All of it happens on the agent's loop; what may hang is a child process.

    Arguments:
        options: the agent's.
        layout: the worker's folder.
        environ: the agent's environment.
        changed: is told each inventory that differs from the one before, after `open`.
        measured: is told each sample that is worth a message.
        held: UUIDs of the devices that attempts hold.
        prober: probes frameworks; None: nothing does.
        guard: asks NVML.
    """

    def __init__(
        self,
        options: Options,
        layout: Layout,
        environ: Mapping[str, str],
        *,
        changed: Callable[[Inventory], None] = lambda _: None,
        measured: Callable[[Sample], None] = lambda _: None,
        held: Callable[[], Collection[str]] = tuple,
        prober: Prober | None = None,
        guard: NvmlGuard | None = None,
    ):
        self._options, self._layout, self._environ = options, layout, environ
        self._changed, self._measured = changed, measured
        self._prober = prober
        self._frameworks: dict[str, Framework] = {}
        self._guard = guard or NvmlGuard(absent=nothing_to_ask)
        self._sampler = Sampler(layout.data, Foreigners(layout.data, lambda: bool(held())))
        self._quarantine = Quarantine()
        self._noted: dict[str, Any] = self._quarantine.note()
        self._tasks: set[asyncio.Task[None]] = set()
        self._asking: set[asyncio.Future[dict[str, Any]]] = set()  # for a device's use
        self._place = location.told(options.region, options.zone, environ)
        self._host = self.inventory = _UNKNOWN
        self._nvidia, self._others = Found(), Found()
        self._nvml_problem = ""  # 'failed: …'
        self._late = False  # NVML was waited for in vain
        self._ready = False  # the worker may say hello: from now on what changes is told
        self._nvml_answered = asyncio.Event()  # for the first time, or failed
        self._looks: list[asyncio.Task[None]] = []
        self._nvml_asked = asyncio.Event()  # NVML is to be asked for the devices anew
        self._sampling = False
        self._samples = 0
        self._sent: Sample | None = None
        self._sent_at_s = 0.0

    # ---------------------------------------------------------------- life

    async def start(self) -> None:
        """Look at the machine: returns soon, whatever its drivers do."""
        self._host = await asyncio.to_thread(self._look_at_host)
        note = await asyncio.to_thread(self._layout.noted, self._layout.data, "quarantine")
        self._quarantine.take_up(note, time.monotonic())
        self._noted = self._quarantine.note()
        self._compose()
        self._spawn(self._watch_nvidia())
        self._looks = [self._spawn(work) for work in (self._find_others(), self._find_place())]
        try:
            await asyncio.wait_for(self._nvml_answered.wait(), _JOIN_WAITS_S)
        except asyncio.TimeoutError:
            log.warning("NVML has not answered within %g s: its devices are told later", _JOIN_WAITS_S)
            self._late = True
        if self._prober is not None:
            known = await asyncio.to_thread(self._prober.known, self.inventory)
            self._frameworks = {framework.name: framework for framework in known}
        self._compose()

    async def settled(self) -> None:
        """Until everybody has answered, or let his deadline pass."""
        await self._nvml_answered.wait()
        await asyncio.gather(*self._looks)
        self._compose()

    def open(self) -> None:
        """From now on what changes is told, and frameworks are probed."""
        self._ready = True
        if self._prober is not None:
            self._spawn(self._prober.watch(lambda: self.inventory, self._framework_told, self._compose))

    def _look_at_host(self) -> Inventory:
        if self._prober is not None:
            self._prober.packages()
        return host()

    async def close(self) -> None:
        """End what was started."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._guard.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._reaped)
        return task

    def _reaped(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a look at the machine failed", exc_info=task.exception())

    # ---------------------------------------------------------------- what there is

    def _compose(self) -> None:
        """Put the inventory together, and tell it where it changed."""
        reasons = self._quarantine.reasons()
        waits = self._late and self._guard.present and not self._nvml_answered.is_set()
        silent = f"NVML {self._nvml_problem}" if self._nvml_problem else "NVML has not answered yet" if waits else ""
        devices = [
            replace(device, sick=device.sick or silent or reasons.get(device.uuid, ""))
            for device in self._nvidia.devices
        ]
        devices += [
            replace(device, sick=device.sick or reasons.get(device.uuid, "")) for device in self._others.devices
        ]
        asked = self._prober.asked if self._prober is not None else None
        problems = [*self._nvidia.problems, *self._others.problems]
        if asked is not None and asked.problem:
            problems.insert(0, asked.problem)
        if silent:
            problems.insert(0, f"NVIDIA devices present, {silent}")
        inventory = replace(
            self._host,
            python=(asked.python if asked is not None else "") or self._host.python,
            devices=tuple(devices),
            links=(*self._nvidia.links, *self._others.links),
            problems=tuple(problems),
            looking=("cuda",) if waits else (),
            cuda=self._nvidia.cuda,
            region=self._place.region,
            zone=self._place.zone,
            labels=dict(self._options.labels),
            frameworks=tuple(self._frameworks.values()),
        )
        before = self.inventory
        if self._prober is not None:
            for uuid in mended(before.devices, inventory.devices):
                self._prober.again(uuid)  # what is known of frameworks there is of another time
            inventory = replace(inventory, probing=self._prober.probing(inventory))
        self.inventory = inventory
        if self._ready and inventory != before:
            self._changed(inventory)

    async def _find_others(self) -> None:
        apple = await asyncio.to_thread(apple_devices)
        amd = await amd_devices(await asyncio.to_thread(amd_present), self._environ)
        self._others = replace(amd, devices=(*apple, *amd.devices))
        if self._others != Found():
            self._compose()

    async def _find_place(self) -> None:
        place = await asyncio.to_thread(location.found, self._place, self._environ)
        if place != self._place:
            self._place = place
            self._compose()

    async def _watch_nvidia(self) -> None:
        try:
            await self._ask_nvidia()
        finally:
            self._nvml_answered.set()  # nobody waits for an answer that won't come

    async def _ask_nvidia(self) -> None:
        """Ask NVML what there is, and again whenever that may be different; where it fails, ever more seldom."""
        pause_s = _FIRST_AGAIN_S
        while True:
            self._nvml_asked.clear()
            try:
                here = await nvidia_devices(self._guard, self._environ, _START_S)
                if self._guard.present and not here.devices and not here.problems:
                    here = replace(here, problems=(_NONE_LISTED,))
                self._nvidia, self._nvml_problem = self._with_lost(here), ""
            except (NvmlTrouble, msgspec.ValidationError) as error:
                if not self._guard.present and not self._nvidia.devices:
                    await self._guard.close()
                    return  # there is none of NVIDIA's here
                self._nvml_problem = f"failed: {error}"
                log.warning("NVIDIA devices present, NVML %s", self._nvml_problem)
            self._nvml_answered.set()
            self._compose()
            if self._nvml_problem:
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, _LAST_AGAIN_S)
            elif not self._nvidia.devices and not self._guard.present:
                await self._guard.close()
                return
            else:
                pause_s = _FIRST_AGAIN_S
                await self._nvml_asked.wait()

    def _with_lost(self, here: Found) -> Found:
        """Devices that were there and are not any more are sick, not forgotten; slices that were made anew are."""
        listed = {device.uuid for device in here.devices} | {device.parent for device in here.devices}
        lost = [
            replace(device, sick="it is gone: NVML does not list it any more")
            for device in self._nvidia.devices
            if (device.parent or device.uuid) not in listed
        ]
        return replace(here, devices=(*here.devices, *lost))

    # ---------------------------------------------------------------- how it fares

    def tick(self, *, connected: bool) -> None:
        """Once a second."""
        now_s = time.monotonic()
        if self._late and not self._nvml_answered.is_set():
            self._compose()  # by now it may be known that there are devices
        for uuid in self._quarantine.due(now_s):
            self._spawn(self._probe_device(uuid))
        if not connected:
            self._sent = None  # whoever answers next has seen none
        elif not self._sampling and self._ready:
            self._sampling = True
            self._spawn(self._tell_sample())

    async def sample(self) -> Sample:
        """How the machine fares now; rates are those since the last sample. Raises OSError without its folder."""
        uses = await self._device_uses()
        return self._sampler.take(time.monotonic(), uses)

    async def _tell_sample(self) -> None:
        try:
            sample = await self.sample()
        except OSError as error:
            log.warning("no sample of the machine: %s", error)
            return
        finally:
            self._sampling = False
        now_s = time.monotonic()
        if self._sent is None or now_s - self._sent_at_s >= _SENT_AT_LEAST_S or noticeable(self._sent, sample):
            self._sent, self._sent_at_s = sample, now_s
            self._measured(sample)

    async def _device_uses(self) -> Iterable[DeviceUse]:
        ours = {device.uuid for device in self._nvidia.devices}
        if not ours or self._nvml_problem:
            return ()
        health = self._samples % _HEALTH_EVERY == 0
        self._samples += 1
        try:
            answer = await self._guard.ask({"ask": "sample", "health": health}, _SAMPLE_S)
            uses = msgspec.convert(answer, _Uses)
        except (NvmlTrouble, msgspec.ValidationError) as error:
            log.warning("NVML gave no sample: %s", error)
            self._nvml_asked.set()  # whether that lasts
            return ()
        self._heed(uses)
        return [use for use in uses.devices if use.uuid in ours]

    def _heed(self, uses: _Uses) -> None:
        """What the driver told of sick devices."""
        now_s, devices = time.monotonic(), self._nvidia.devices
        if uses.changed:
            self._nvml_asked.set()
        for uuid, words in uses.xids:
            for device in devices:
                if uuid in (device.uuid, device.parent):
                    self._quarantine.suspect(device.uuid, words, now_s, sure=True)
        if uses.sick is not None:
            sick = uses.sick
            devices = tuple(
                replace(device, sick=sick.get(device.parent or device.uuid, device.sick)) for device in devices
            )
        if devices != self._nvidia.devices or uses.xids:
            self._nvidia = replace(self._nvidia, devices=devices)
            self._quarantine_changed()

    async def use(self, uuid: str) -> DeviceUse:
        """A device's use now. Raises `NvmlTrouble`."""
        if self._nvml_problem:
            raise NvmlTrouble(f"NVML {self._nvml_problem}")
        # Shielded: a question that is cut off costs the process that asks NVML, and the Xids that it heard of.
        asking = asyncio.ensure_future(self._guard.ask({"ask": "use", "uuid": uuid}, _SAMPLE_S))
        self._asking.add(asking)
        asking.add_done_callback(self._used)
        try:
            return msgspec.convert(await asyncio.shield(asking), DeviceUse)
        except msgspec.ValidationError as error:
            raise NvmlTrouble(f"it says what can't be read: {error}") from error

    def _used(self, asking: asyncio.Future[dict[str, Any]]) -> None:
        self._asking.discard(asking)
        if not asking.cancelled() and asking.exception() is not None:
            self._nvml_asked.set()  # the next process that asks knows of no device yet

    # ---------------------------------------------------------------- probes and sick devices

    def ended(self, devices: Iterable[Device], outcome: Outcome) -> None:
        """An attempt ended: one that failed in a way that smells of a sick device has its devices probed."""
        if outcome.state is not State.FAILED:
            return
        smelt = smell(outcome)
        if smelt is None:
            return
        for device in devices:
            log.warning("device %s is probed: a job on it ended with: %s", device.uuid, smelt.words)
            words = f"a job on it ended with: {smelt.words}"
            self._quarantine.suspect(device.uuid, words, time.monotonic(), sure=smelt.sure)
        self._quarantine_changed()

    def _framework_told(self, framework: Framework) -> None:
        """A probe came through. A device on which it fails, where others of the kind work, is looked at alone."""
        self._frameworks[framework.name] = framework
        if not framework.version:  # it was removed
            del self._frameworks[framework.name]
        for uuid in left_out(framework, self.inventory.devices):
            reason = f"{framework.name} does not work on it, and does on others"
            self._quarantine.suspect(uuid, reason, time.monotonic(), sure=False)
        self._compose()

    async def _probe_device(self, uuid: str) -> None:
        problem = None
        if self._prober is not None:
            if not any(device.uuid == uuid for device in self.inventory.devices):
                self._quarantine.absent(uuid, time.monotonic(), for_good=self._all_answered)
                self._quarantine_changed()
                return
            try:
                problem = await self._prober.probe_device(uuid)
            except Exception as error:  # a fault of ours, not of the device: it stays as it is until the next try
                log.error("the probe of device %s failed: %s", uuid, error, exc_info=error)
                self._quarantine.absent(uuid, time.monotonic())
                return
        sick_before = uuid in self._quarantine.reasons()
        self._quarantine.probed(uuid, problem, time.monotonic())
        if self._prober is not None and not sick_before and uuid in self._quarantine.reasons():
            self._prober.again(uuid)
        self._quarantine_changed()

    @property
    def _all_answered(self) -> bool:
        """Whether what is not in the inventory is not there."""
        return self._nvml_answered.is_set() and not self._nvml_problem and all(look.done() for look in self._looks)

    def _quarantine_changed(self) -> None:
        note = self._quarantine.note()
        if note != self._noted:
            try:
                self._layout.note(self._layout.data, "quarantine", note)
                self._noted = note
            except OSError as error:  # a full disk: it is tried again with the next change
                log.warning("which devices are sick can't be noted for the next agent: %s", error)
        self._compose()
