"""What NVML says of the machine's NVIDIA devices, as plain values. Runs in the child: see `nvmlguard`.

`nvml` is the module `pynvml`, or in tests one that is made up. Not every driver and card answers every question: what
is not answered is unknown; only a failure of the first questions is one of NVML's as a whole.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from gpulayer_worker.inventory.xids import device_xid

T = TypeVar("T")

_SWITCH = 2  # NVML_NVLINK_DEVICE_TYPE_SWITCH
_NO_INSTANCE = 0xFFFFFFFF
_TEMPERATURE_GPU = 0
_LOST = (15, 16)  # NVML_ERROR_GPU_IS_LOST, NVML_ERROR_RESET_REQUIRED


class Nvml:
    """NVML, opened. Every method may hang or end the process: that is why a child asks.

    Raises whatever `nvml.NVMLError` the first questions give.
    """

    def __init__(self, nvml: Any):
        self._nvml = nvml
        nvml.nvmlInit()
        self._handles: dict[str, Any] = {}  # by UUID: what is sampled
        self._parents: dict[str, Any] = {}  # of slices
        self._indices: dict[str, int] = {}  # of cards
        self._events: Any = None
        self._slices: dict[tuple[str, int], str] = {}  # UUID of a card and GPU instance -> UUID of the slice

    # ---------------------------------------------------------------- what there is

    def machine(self) -> dict[str, Any]:
        """Driver, CUDA version, cards with their slices and links, and what could not be read."""
        nvml, problems = self._nvml, []
        for known in (self._handles, self._parents, self._indices, self._slices):
            known.clear()
        cards: list[dict[str, Any]] = []
        handles: list[Any] = []
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                cards.append(self._card(handle, index))
                handles.append(handle)
            except nvml.NVMLError as error:
                problems.append(f"NVIDIA device {index} can't be used: {error}")
        self._listen(handles)
        cuda = self._try("nvmlSystemGetCudaDriverVersion_v2") or 0
        return {
            "driver": text(self._try("nvmlSystemGetDriverVersion") or ""),
            "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "",
            "cards": cards,
            "levels": self._levels(handles),
            "problems": problems,
        }

    def _card(self, handle: Any, index: int) -> dict[str, Any]:
        nvml = self._nvml
        uuid = text(nvml.nvmlDeviceGetUUID(handle))
        self._handles[uuid], self._indices[uuid] = handle, index
        capability = self._try("nvmlDeviceGetCudaComputeCapability", handle)
        pci = self._try("nvmlDeviceGetPciInfo", handle)
        name = text(self._try("nvmlDeviceGetName", handle) or "")
        return {
            "uuid": uuid,
            "index": index,
            "name": name,
            "vram_bytes": self._memory(handle)[0],
            "capability": f"{capability[0]}.{capability[1]}" if capability else "",
            "pci": pci_id(text(pci.busId)) if pci is not None else "",
            "sick": self.health(handle, index),
            "mig": (self._try("nvmlDeviceGetMigMode", handle) or (0, 0))[0] == 1,
            "slices": self._card_slices(handle, uuid, name),
            "nvlinks": self._nvlinks(handle),
        }

    def _card_slices(self, handle: Any, uuid: str, name: str) -> list[dict[str, Any]]:
        slices: list[dict[str, Any]] = []
        for part in self._parts(handle):
            of_part = text(self._try("nvmlDeviceGetUUID", part) or "")
            if of_part:
                self._handles[of_part], self._parents[of_part] = part, handle
                instance = self._try("nvmlDeviceGetGpuInstanceId", part)
                if instance is not None:
                    self._slices[uuid, instance] = of_part
                vram = self._memory(part)[0]
                slices.append({"uuid": of_part, "name": self._slice_name(part, name), "vram_bytes": vram})
        return slices

    def _slice_name(self, part: Any, card: str) -> str:
        name = text(self._try("nvmlDeviceGetName", part) or "")
        if "MIG" in name:
            return name
        found = self._try("nvmlDeviceGetAttributes", part)
        if found is None:
            return f"{card} MIG"
        return f"{card} MIG {found.gpuInstanceSliceCount}g.{round(found.memorySizeMB / 1024)}gb"

    def _nvlinks(self, handle: Any) -> list[str]:
        """Of each NVLink that is up: the bus id at its other end, 'switch', or '' where that is not known."""
        nvml, found = self._nvml, []
        for number in range(nvml.NVML_NVLINK_MAX_LINKS):
            if self._try("nvmlDeviceGetNvLinkState", handle, number) != 1:
                continue
            remote = self._try("nvmlDeviceGetNvLinkRemotePciInfo", handle, number)
            if self._try("nvmlDeviceGetNvLinkRemoteDeviceType", handle, number) == _SWITCH:
                found.append("switch")
            else:
                found.append(pci_id(text(remote.busId)) if remote is not None else "")
        return found

    def _levels(self, handles: list[Any]) -> list[list[int]]:
        """[place, place, level of the common ancestor] of each two cards, by their places among those read."""
        levels: list[list[int]] = []
        for a, first in enumerate(handles):
            for b in range(a + 1, len(handles)):
                level = self._try("nvmlDeviceGetTopologyCommonAncestor", first, handles[b])
                if level is not None:
                    levels.append([a, b, int(level)])
        return levels

    # ---------------------------------------------------------------- how they are

    def health(self, handle: Any, index: int) -> str:
        """Why a card should take no work, by its own counters; '' where it should."""
        nvml = self._nvml
        reset = f"reset it (nvidia-smi --gpu-reset -i {index}) or restart the machine"
        try:
            nvml.nvmlDeviceGetMemoryInfo(handle)
        except nvml.NVMLError as error:
            if getattr(error, "value", None) in _LOST:
                return f"{error}: {reset}"
        rows = self._try("nvmlDeviceGetRemappedRows", handle)
        if rows is not None and rows[3]:
            return "a row of its memory could not be remapped: the card has to be replaced"
        if rows is not None and rows[2]:
            return f"rows of its memory wait to be remapped: {reset}"
        if self._try("nvmlDeviceGetRetiredPagesPendingStatus", handle) == 1:
            return f"pages of its memory wait to be retired: {reset}"
        errors = self._try(
            "nvmlDeviceGetTotalEccErrors", handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        )
        many = "error" if errors == 1 else "errors"
        return f"{errors} uncorrected ECC {many} since the driver was loaded: {reset}" if errors else ""

    def sample(self, *, health: bool) -> dict[str, Any]:
        """Of each device its use now, and Xids since the last question.

        With `health` why cards are sick, by UUID, and whether other devices are listed than by `machine`.
        """
        devices = [self._sampled(uuid, handle) for uuid, handle in self._handles.items()]
        found: dict[str, Any] = {"devices": devices, "xids": self._xids()}
        if health:
            found["sick"] = {uuid: self.health(self._handles[uuid], index) for uuid, index in self._indices.items()}
            found["changed"] = self._listed() != set(self._handles)
        return found

    def _listed(self) -> set[str]:
        """UUIDs of the cards and slices that there are now."""
        found: set[str] = set()
        for index in range(self._try("nvmlDeviceGetCount") or 0):
            handle = self._try("nvmlDeviceGetHandleByIndex", index)
            found.add(text(self._try("nvmlDeviceGetUUID", handle) or "") if handle is not None else "")
            found |= {text(self._try("nvmlDeviceGetUUID", part) or "") for part in self._parts(handle)}
        return found - {""}

    def _parts(self, handle: Any) -> list[Any]:
        """The slices of a card in MIG mode."""
        if handle is None or (self._try("nvmlDeviceGetMigMode", handle) or (0, 0))[0] != 1:
            return []
        numbers = range(self._try("nvmlDeviceGetMaxMigDeviceCount", handle) or 0)
        parts = [self._try("nvmlDeviceGetMigDeviceHandleByIndex", handle, number) for number in numbers]
        return [part for part in parts if part is not None]

    def _sampled(self, uuid: str, handle: Any) -> dict[str, Any]:
        card = self._parents.get(uuid, handle)
        rates = self._try("nvmlDeviceGetUtilizationRates", handle)
        power = self._try("nvmlDeviceGetPowerUsage", card)
        memory = self._memory(handle)
        return {
            "uuid": uuid,
            "free_bytes": memory[1],
            "used_bytes": memory[2],
            "utilisation": None if rates is None else rates.gpu / 100,
            "temperature_c": self._try("nvmlDeviceGetTemperature", card, _TEMPERATURE_GPU),
            "power_w": None if power is None else power / 1000,
            "processes": self._processes(handle),
        }

    def use(self, uuid: str) -> dict[str, Any]:
        """A device's use now. Raises KeyError for one that is not there."""
        return self._sampled(uuid, self._handles[uuid])

    def _processes(self, handle: Any) -> list[list[int | None]]:
        """[process id, bytes or None] of whatever runs on a device: its memory there is told once."""
        found: dict[int, int | None] = {}
        for name in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
            for process in self._try(name, handle) or ():
                held = process.usedGpuMemory
                found[process.pid] = None if held is None else int(held)
        return [[pid, held] for pid, held in sorted(found.items())]

    def _memory(self, handle: Any) -> tuple[int | None, int | None, int | None]:
        """Total, free and used bytes; None where memory is the machine's own."""
        found = self._try("nvmlDeviceGetMemoryInfo", handle)
        return (None, None, None) if found is None else (int(found.total), int(found.free), int(found.used))

    # ---------------------------------------------------------------- events

    def _listen(self, handles: list[Any]) -> None:
        """Hear of Xids from now on, where the driver tells."""
        nvml = self._nvml
        if self._events is not None:
            self._try("nvmlEventSetFree", self._events)
        self._events = self._try("nvmlEventSetCreate")
        for handle in handles if self._events is not None else ():
            self._try("nvmlDeviceRegisterEvents", handle, nvml.nvmlEventTypeXidCriticalError, self._events)

    def _xids(self) -> list[list[str]]:
        """[UUID of the device, what happened] of each Xid since the last question that speaks of a device."""
        found: list[list[str]] = []
        while self._events is not None and len(found) < 64:
            event = self._try("nvmlEventSetWait_v2", self._events, 0)
            if event is None:  # none waits
                break
            uuid = text(self._try("nvmlDeviceGetUUID", event.device) or "")
            instance = int(getattr(event, "gpuInstanceId", _NO_INSTANCE))
            words = device_xid(int(event.eventData))
            if words and uuid:
                found.append([self._slices.get((uuid, instance), uuid), words])
        return found

    def _try(self, name: str, *arguments: Any) -> Any:
        """What a function says; None where these bindings, this driver or this card have no answer."""
        try:
            return getattr(self._nvml, name)(*arguments)
        except (self._nvml.NVMLError, AttributeError):
            return None


def text(value: str | bytes) -> str:
    """NVML's bindings give bytes or text, by their version."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def pci_id(bus_id: str) -> str:
    """A bus id as Linux writes it: '00000000:3B:00.0' is '0000:3b:00.0'."""
    domain, colon, rest = bus_id.strip("\0 ").lower().partition(":")
    return f"{domain[-4:]}:{rest}" if colon else domain


def devices_present(root: Path = Path("/")) -> bool:
    """Whether the machine shows an NVIDIA device, whatever its libraries say: a device file, or a card on the bus."""
    if any((root / "dev").glob("nvidia[0-9]*")) or any((root / "proc/driver/nvidia/gpus").glob("*")):
        return True
    for device in (root / "sys/bus/pci/devices").glob("*"):
        try:
            vendor, kind = (device / "vendor").read_text().strip(), (device / "class").read_text().strip()
        except (OSError, ValueError):
            continue
        if vendor == "0x10de" and kind.startswith("0x03"):
            return True
    return False
