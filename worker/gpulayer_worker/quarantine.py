"""Devices that take no work because they seem sick: each alone, probed again ever more seldom, mended by a good probe.

Pure: the clock comes from outside, and whoever holds this probes what is due.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpulayer.protocol.types import Device, Framework, Outcome

FIRST_PAUSE_S = 30.0
LAST_PAUSE_S = 3600.0

#: What a failed job says that smells of a sick device, and whether the device takes no work until a probe has passed.
#: 'False': programs cause this too, or somebody else's do: the device is probed beside whatever runs there.
#: In no row, for it is the program's own fault: 'device-side assert', 'illegal memory access', 'misaligned address',
#: 'illegal instruction', 'out of memory', 'invalid configuration', a CUBLAS or CUDNN status.
SMELLS: tuple[tuple[str, bool], ...] = (
    (r"uncorrectable (ECC|NVLink) error", True),
    (r"(cudaError|CUDA_ERROR_|hipError)ECC_?(Uncorrectable|NotCorrectable)", True),
    (r"CUDA_ERROR_(ECC|NVLINK)_UNCORRECTABLE", True),
    (r"cudaErrorNvlinkUncorrectable", True),
    (r"\bXid\b[^\n]{0,40}?\b(48|62|63|64|74|79|92|94|95|119|120|140)\b", True),
    (r"fallen off the bus|GPU is lost|NVML_ERROR_GPU_IS_LOST", True),
    (r"HW Exception by GPU node", True),
    (r"CUDA error: unknown error|cudaErrorUnknown|CUDA_ERROR_UNKNOWN", False),
    (r"hardware stack error|CUDA_ERROR_HARDWARE_STACK_ERROR", False),
    (r"CUDA error: unspecified launch failure|CUDA_ERROR_LAUNCH_FAILED|cudaErrorLaunchFailure", False),
    (r"no CUDA-capable device is detected|CUDA_ERROR_NO_DEVICE", False),
    (r"CUDA_ERROR_SYSTEM_NOT_READY|system not yet initialized", False),
    (r"CUDA_ERROR_NOT_INITIALIZED|CUDA driver initialization failed", False),
    (r"CUDA-capable device\(s\) is/are busy or unavailable|CUDA_ERROR_DEVICE_UNAVAILABLE", False),
)
_SMELLS = tuple((re.compile(words, re.IGNORECASE), sure) for words, sure in SMELLS)


@dataclass(frozen=True, kw_only=True)
class Smell:
    """What in a job's end speaks of its device."""

    words: str
    sure: bool  # the device takes no work until a probe has passed


def smell(outcome: Outcome) -> Smell | None:
    """What in the end of a failed job smells of a sick device; None where nothing does."""
    text = "\n".join((outcome.error or "", outcome.problem or "", outcome.tail or ""))
    for words, sure in _SMELLS:
        found = words.search(text)
        if found is not None:
            line = text[text.rfind("\n", 0, found.start()) + 1 :].partition("\n")[0].strip()
            return Smell(words=line[:200], sure=sure)
    return None


@dataclass(kw_only=True)
class _Patient:
    """A device that is looked at. Only `Quarantine` changes it."""

    reason: str
    since_s: float
    sick: bool  # it takes no work; else it is only to be probed
    due_s: float
    pause_s: float = FIRST_PAUSE_S
    probing: bool = False
    anew: bool = False  # something sure was heard of it while it was probed: how that goes says nothing of it


class Quarantine:
    """Which devices seem sick, by UUID, and when each is to be probed. Times are seconds of any one clock."""

    def __init__(self) -> None:
        self._patients: dict[str, _Patient] = {}

    def reasons(self) -> dict[str, str]:
        """Of those that take no work, why."""
        return {uuid: patient.reason for uuid, patient in self._patients.items() if patient.sick}

    def suspect(self, uuid: str, reason: str, now_s: float, *, sure: bool) -> None:
        """Something smells: probe it soon; `sure`: it takes no work until it passed."""
        known = self._patients.get(uuid)
        if known is None:
            self._patients[uuid] = _Patient(reason=reason, since_s=now_s, sick=sure, due_s=now_s)
        elif sure and not known.sick:
            known.sick, known.reason, known.due_s = True, reason, min(known.due_s, now_s)
        if known is not None and sure:
            known.anew = known.probing

    def due(self, now_s: float) -> list[str]:
        """Those to be probed now; each is named once, until `probed` says how it went."""
        due = [uuid for uuid, patient in self._patients.items() if patient.due_s <= now_s and not patient.probing]
        for uuid in due:
            self._patients[uuid].probing = True
        return due

    def probed(self, uuid: str, problem: str | None, now_s: float) -> None:
        """How a probe went: '' it works, else why not; None: nothing can probe it, so after the pause it may work."""
        patient = self._patients.get(uuid)
        if patient is None:
            return
        anew, patient.probing, patient.anew = patient.anew, False, False
        if anew and not problem:
            patient.due_s = now_s + FIRST_PAUSE_S  # not at once: the probe may have brought it about
            return
        if problem == "" or (problem is None and (not patient.sick or now_s - patient.since_s >= FIRST_PAUSE_S)):
            del self._patients[uuid]
            return
        if problem:
            patient.reason, patient.sick = problem, True
        patient.due_s = now_s + patient.pause_s
        patient.pause_s = min(patient.pause_s * 2, LAST_PAUSE_S)

    def absent(self, uuid: str, now_s: float, *, for_good: bool = False) -> None:
        """It could not be probed: later; `for_good`: the machine has no such device, and it is let go of."""
        patient = self._patients.get(uuid)
        if patient is None:
            return
        patient.probing = patient.anew = False
        patient.due_s = now_s + FIRST_PAUSE_S
        if for_good:
            del self._patients[uuid]

    # ---------------------------------------------------------------- across agents

    def note(self) -> dict[str, Any]:
        """What the next agent takes up."""
        return {"sick": self.reasons()}

    def take_up(self, note: Mapping[str, Any] | None, now_s: float) -> None:
        """What an agent before us noted: sick until a probe has passed, which is due at once."""
        sick = (note or {}).get("sick")
        for uuid, reason in sick.items() if isinstance(sick, dict) else ():
            self.suspect(str(uuid), str(reason), now_s, sure=True)


def left_out(framework: Framework, devices: Iterable[Device]) -> list[str]:
    """Devices on which a framework failed, though it works on others of their kind; not those that it never saw."""
    kinds = {device.kind for device in devices if device.uuid in framework.devices} & set(framework.problems)
    left = [device for device in devices if device.kind in kinds and device.uuid not in framework.devices]
    return [device.uuid for device in left if not device.sick]


def mended(before: Iterable[Device], now: Iterable[Device]) -> list[str]:
    """Devices that were sick and are not any more."""
    sick = {device.uuid for device in before if device.sick}
    return [device.uuid for device in now if device.uuid in sick and not device.sick]
