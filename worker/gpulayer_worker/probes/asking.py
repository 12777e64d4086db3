"""Asks a framework what it can: together first, and each target that got no answer in a process of its own."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from gpulayer.protocol.machines import Device, Inventory
from gpulayer_worker.environ import allowed, for_devices
from gpulayer_worker.probes import scripts
from gpulayer_worker.probes.child import LIMIT_S, Answer, Child
from gpulayer_worker.probes.outcomes import CPU, GENERAL, NO_CPU, Outcome
from gpulayer_worker.probes.packages import Packages

_ONE_DEVICE = frozenset({"mlx"})  # shows one device at a time
_DEPENDS = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")  # of the environment, beside what begins so:
_DEPENDS_PREFIXES = ("CUDA_HOME", "CUDA_PATH", "ROCM_", "HIP_", "NVIDIA_")


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A framework in an interpreter, on a machine."""

    name: str
    packages: Packages
    inventory: Inventory
    limit_s: float = LIMIT_S

    @property
    def targets(self) -> tuple[str, ...]:
        """What it can be asked to compute on: the CPU, and the devices that are not sick."""
        devices = tuple(device.uuid for device in self.inventory.devices if not device.sick)
        return devices if self.name in NO_CPU else (CPU, *devices)

    def key(self) -> str:
        """A digest of all that every result depends on; a device's driver may become known later."""
        environ = {
            name: value
            for name, value in sorted(allowed().items())
            if name in _DEPENDS or name.startswith(_DEPENDS_PREFIXES)
        }
        parts = [self.packages.path, self.packages.python, self.packages.of(self.name), environ, scripts_digest()]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def drivers(self) -> dict[str, str]:
        """What the results of each device depend on beside that."""
        cuda = self.inventory.cuda
        return {
            device.uuid: f"{device.driver} {cuda}" if device.kind == "cuda" else device.driver
            for device in self.inventory.devices
        }


@lru_cache(maxsize=1)
def scripts_digest() -> str:
    """Of our own scripts: another version of them may find something else."""
    digest = hashlib.sha256()
    for path in sorted(Path(scripts.__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


class Asking:
    """Runs the processes of one ask, one after the other. `run` blocks; `end` may be called from another thread."""

    def __init__(self, ask: Ask):
        self._ask = ask
        self._drivers = ask.drivers()
        self._child: Child | None = None
        self._ended = False
        self._lock = threading.Lock()
        self.built_for = ""

    def run(self, targets: Sequence[str]) -> dict[str, Outcome]:
        """The outcome of each target; or only that of `GENERAL` where nothing can be done with the framework."""
        found: dict[str, Outcome] = {}
        for group in self._groups(targets):
            found |= self._group(group)
            if GENERAL in found or self._ended:
                break
        return {GENERAL: found[GENERAL]} if GENERAL in found else found

    def end(self) -> None:
        """Kill what runs, and start nothing more."""
        with self._lock:
            self._ended = True
            if self._child is not None:
                self._child.end()

    def _groups(self, targets: Sequence[str]) -> list[list[str]]:
        """Whole cards of one kind go together, the CPU with the first: a process shows one slice at most."""
        devices = {device.uuid: device for device in self._ask.inventory.devices}
        alone = [
            each for each in targets if each in devices and (devices[each].parent or self._ask.name in _ONE_DEVICE)
        ]
        rest = [each for each in targets if each not in alone]
        kinds = dict.fromkeys(devices[each].kind for each in rest if each in devices)
        groups = [[each for each in rest if each in devices and devices[each].kind == kind] for kind in kinds]
        groups += [[each] for each in alone]
        if CPU in rest:
            groups = [[CPU, *groups[0]], *groups[1:]] if groups else [[CPU]]
        return groups

    def _group(self, group: Sequence[str]) -> dict[str, Outcome]:
        answer = self._child_of(group)
        found = self._read(answer, group)
        missing = [target for target in group if target not in found]
        if GENERAL in found or not missing or self._ended:
            return found
        if answer.stage in ("starting", "importing"):
            return self._not_imported(f"{answer.ended} while {answer.stage}{answer.more}", group)
        if len(group) == 1:
            return {group[0]: self._now(group[0], f"{answer.ended or 'gave no result'}{answer.more}")}
        for target in missing:  # one sick device, or two that don't go together, must not hide the others
            found |= self._group([target])
        return found

    def _not_imported(self, why: str, group: Sequence[str]) -> dict[str, Outcome]:
        """It may be for a device that was shown: then the CPU can be used all the same."""
        if CPU not in group:
            return {each: self._now(each, why) for each in group}
        if len(group) == 1:
            return {GENERAL: self._now(GENERAL, why)}
        found = self._group([CPU])
        return found if GENERAL in found else found | {each: self._now(each, why) for each in group if each != CPU}

    def _child_of(self, group: Sequence[str]) -> Answer:
        devices = [device for device in self._ask.inventory.devices if device.uuid in group]
        about = {
            "cuda": self._ask.inventory.cuda,
            "driver": next((device.driver for device in devices if device.driver), ""),
            "packages": self._ask.packages.of(self._ask.name),
        }
        targets = [{"name": CPU, "kind": CPU, "index": 0}] if CPU in group else []
        targets += [{"name": device.uuid, "kind": device.kind, "index": _place(device, devices)} for device in devices]
        ask = {"script": f"probe_{self._ask.name}", "targets": targets, "about": about}
        with self._lock:
            if self._ended:
                return Answer(ended="the agent ended")
            variables = shown(tuple(devices), self._ask.inventory.devices)
            child = self._child = Child(self._ask.packages.path, ask, variables, limit_s=self._ask.limit_s)
        return child.run()

    def _read(self, answer: Answer, group: Sequence[str]) -> dict[str, Outcome]:
        found: dict[str, Outcome] = {}
        for record in answer.records:
            if record.get("target") in group:
                found[record["target"]] = self._now(
                    record["target"], record.get("why", ""), lasting=bool(record.get("lasting"))
                )
            elif "problem" in record:
                return self._not_imported(record["problem"], group)
            self.built_for = record.get("built_for", self.built_for)
        return found

    def _now(self, target: str, why: str, *, lasting: bool = False) -> Outcome:
        return Outcome(why=why, lasting=lasting, driver=self._drivers.get(target, ""), at=time.time())


def _place(device: Device, shown: Sequence[Device]) -> int:
    """A device's index in a process that is shown these."""
    return [each.uuid for each in shown if each.kind == device.kind].index(device.uuid)


def shown(devices: tuple[Device, ...], present: tuple[Device, ...]) -> Mapping[str, str | None]:
    """The variables that show a process these devices in this order and no other; for the CPU alone, none at all."""
    variables = for_devices(devices, present)
    if any(device.kind == "rocm" for device in devices):
        return variables | {"CUDA_VISIBLE_DEVICES": None}  # HIP heeds it too
    visible = ",".join(device.uuid for device in devices if device.kind == "cuda")
    variables |= {"CUDA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    return variables if devices else variables | {"JAX_PLATFORMS": "cpu"}
