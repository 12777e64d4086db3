"""An NVML that is made up: as an object for tests of a function, or as a module `pynvml` for a worker's processes.

    nvml = Fake(t4())                                     # in this process
    env = fake_pynvml(folder, broken("Driver/library version mismatch"))    # for `deployment.worker(..., env=env)`
    change(folder, t4(ecc=2))                             # what the worker sees from now on
    change(folder, machine(card(0), note="/tmp/asked"))   # what it asks is noted, a line for each call

A machine is a dict, as JSON. This file is copied to `pynvml.py`: the standard library only.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

GB = 1 << 30
Machine = dict[str, Any]


class NVMLError(Exception):
    """As pynvml's: its words, and of some the number."""

    @property
    def value(self) -> int:
        """NVML's own number."""
        return {"GPU is lost": 15, "Not Supported": 3}.get(str(self), 999)


# ---------------------------------------------------------------- machines


def card(number: int, name: str = "Tesla T4", gb: int = 16, **more: Any) -> dict[str, Any]:
    """A card; its bus id follows from its number."""
    base = {
        "uuid": f"GPU-{number:08x}-1111-2222-3333-444444444444",
        "name": name,
        "total": gb * GB,
        "used": 0,
        "pci": f"00000000:{number + 1:02X}:00.0",
        "capability": [7, 5],
    }
    return base | more


def t4(**more: Any) -> Machine:
    """One card."""
    return machine(card(0, **more))


def machine(*cards: dict[str, Any], **more: Any) -> Machine:
    """A machine with these cards."""
    return {"driver": "535.104.05", "cuda": 12020, "present": True, "cards": list(cards), **more}


#: As `nvidia-smi topo -m` shows the cube mesh of a DGX-1: NVLinks of each pair that has any.
DGX1 = {(0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2, (2, 6): 1, (3, 7): 1,
        (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2}  # fmt: skip


def dgx1() -> Machine:
    """Eight V100 in a cube mesh, four to a socket."""
    cards = [card(n, "Tesla V100-SXM2-16GB", capability=[7, 0]) for n in range(8)]
    for (a, b), count in DGX1.items():
        for one, other in ((a, b), (b, a)):
            cards[one].setdefault("nvlinks", []).extend([cards[other]["pci"]] * count)
    levels = {f"{a}-{b}": 40 if a // 4 == b // 4 else 50 for a in range(8) for b in range(a + 1, 8)}
    return machine(*cards, levels=levels)


def h100s(count: int = 4) -> Machine:
    """Cards on NVSwitch."""
    cards = [card(n, "NVIDIA H100 80GB HBM3", 80, capability=[9, 0], nvlinks=["switch"] * 18) for n in range(count)]
    levels = {f"{a}-{b}": 50 for a in range(count) for b in range(a + 1, count)}
    return machine(*cards, levels=levels)


def mig(slices: int = 2) -> Machine:
    """An A100 in slices, and one that is whole."""
    parts = [
        {"uuid": f"MIG-{n:08x}-aaaa-bbbb-cccc-dddddddddddd", "name": "NVIDIA A100-SXM4-40GB MIG 3g.20gb",
         "total": 20 * GB, "used": 0, "gi": n + 1}
        for n in range(slices)
    ]  # fmt: skip
    name = "NVIDIA A100-SXM4-40GB"
    first = card(0, name, 40, capability=[8, 0], mig=True, slices=parts)
    return machine(first, card(1, name, 40, capability=[8, 0]), levels={"0-1": 20})


def broken(words: str = "Driver/library version mismatch") -> Machine:
    """Devices are there, and NVML fails to begin."""
    return machine(init=words)


def hanging(function: str = "nvmlInit") -> Machine:
    """A call that never returns."""
    return machine(card(0), hang=[function])


def crashing(function: str = "nvmlInit") -> Machine:
    """A call that ends its process."""
    return machine(card(0), crash=[function])


# ---------------------------------------------------------------- as a module of its own


def fake_pynvml(folder: Path, of: Machine) -> dict[str, str]:
    """Put a module `pynvml` into a folder; the environment in which a worker takes it for the real one."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pynvml.py").write_bytes(Path(__file__).read_bytes())
    change(folder, of)
    return {"PYTHONPATH": str(folder)}


def change(folder: Path, of: Machine) -> None:
    """Make the machine another one, in one step."""
    new = folder / "machine.json.new"
    new.write_text(json.dumps(of))
    new.replace(folder / "machine.json")


# ---------------------------------------------------------------- the module


class Fake:
    """The functions and constants of pynvml that we use, over one machine."""

    NVMLError = NVMLError
    NVML_NVLINK_MAX_LINKS = 18
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    nvmlEventTypeXidCriticalError = 8

    def __init__(self, of: Machine):
        self.of = of
        self.calls: list[str] = []
        self._heard = 0

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml") and name != "nvmlEventTypeXidCriticalError":
            self._misbehave(name)
        return super().__getattribute__(name)

    def _misbehave(self, name: str) -> None:
        self.calls.append(name)
        if name in self.of.get("hang", ()):
            threading.Event().wait()
        if name in self.of.get("crash", ()):
            os.kill(os.getpid(), signal.SIGSEGV)

    def _has(self, handle: Any) -> dict[str, Any]:
        try:
            found = self.of["cards"][handle[0]]
            part = found if len(handle) == 1 else found["slices"][handle[1]]
        except (IndexError, KeyError):  # a handle of before
            raise NVMLError("Invalid Argument") from None
        if found.get("lost"):
            raise NVMLError("GPU is lost")
        return part

    def _or_unsupported(self, value: Any) -> Any:
        if value is None:
            raise NVMLError("Not Supported")
        return value

    def nvmlInit(self) -> None:
        if self.of.get("init"):
            raise NVMLError(self.of["init"])

    def nvmlShutdown(self) -> None:
        pass

    def nvmlSystemGetDriverVersion(self) -> str:
        return self.of["driver"]

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return self.of["cuda"]

    def nvmlDeviceGetCount(self) -> int:
        return len(self.of["cards"])

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        self._has((index,))
        return (index,)

    def nvmlDeviceGetUUID(self, handle: Any) -> str:
        return self._has(handle)["uuid"]

    def nvmlDeviceGetName(self, handle: Any) -> bytes:
        return self._has(handle)["name"].encode()  # older bindings give bytes

    def nvmlDeviceGetCudaComputeCapability(self, handle: Any) -> list[int]:
        return self._has(handle)["capability"]

    def nvmlDeviceGetPciInfo(self, handle: Any) -> Any:
        return SimpleNamespace(busId=self._has(handle)["pci"])

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:
        has = self._has(handle)
        total = self._or_unsupported(has["total"])
        return SimpleNamespace(total=total, used=has["used"], free=total - has["used"])

    def nvmlDeviceGetMigMode(self, handle: Any) -> list[int]:
        return [int(self._or_unsupported(self._has(handle).get("mig"))), 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Any) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, number: int) -> Any:
        if number >= len(self._has(handle).get("slices", ())):
            raise NVMLError("Not Found")
        return (handle[0], number)

    def nvmlDeviceGetGpuInstanceId(self, handle: Any) -> int:
        return self._has(handle)["gi"]

    def nvmlDeviceGetNvLinkState(self, handle: Any, link: int) -> int:
        if link >= len(self._has(handle).get("nvlinks", ())):
            raise NVMLError("Not Supported")
        return 1

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: Any, link: int) -> Any:
        end = self._has(handle)["nvlinks"][link]
        return SimpleNamespace(busId="0000FFFF:FF:1F.0" if end == "switch" else end)

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: Any, link: int) -> int:
        return 2 if self._has(handle)["nvlinks"][link] == "switch" else 0

    def nvmlDeviceGetTopologyCommonAncestor(self, a: Any, b: Any) -> int:
        return self._or_unsupported(self.of.get("levels", {}).get(f"{a[0]}-{b[0]}"))

    def nvmlDeviceGetRemappedRows(self, handle: Any) -> list[int]:
        return self._or_unsupported(self._has(handle).get("remapped"))

    def nvmlDeviceGetRetiredPagesPendingStatus(self, handle: Any) -> int:
        return self._or_unsupported(self._has(handle).get("retired"))

    def nvmlDeviceGetTotalEccErrors(self, handle: Any, kind: int, counter: int) -> int:
        return self._or_unsupported(self._has(handle).get("ecc"))

    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any:
        if len(handle) > 1:
            raise NVMLError("Not Supported")
        return SimpleNamespace(gpu=self._has(handle).get("busy", 0), memory=0)

    def nvmlDeviceGetTemperature(self, handle: Any, sensor: int) -> int:
        return 40

    def nvmlDeviceGetPowerUsage(self, handle: Any) -> int:
        return 70_000

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> list[Any]:
        found = self._has(handle).get("processes", ())
        return [SimpleNamespace(pid=pid, usedGpuMemory=held) for pid, held in found]

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: Any) -> list[Any]:
        return []

    def nvmlEventSetCreate(self) -> Any:
        return object()

    def nvmlEventSetFree(self, events: Any) -> None:
        pass

    def nvmlDeviceRegisterEvents(self, handle: Any, kinds: int, events: Any) -> None:
        pass

    def nvmlEventSetWait_v2(self, events: Any, timeout_ms: int) -> Any:
        xids = self.of.get("xids", [])
        if self._heard >= len(xids):
            raise NVMLError("Timeout")
        number, xid, *instance = xids[self._heard]
        self._heard += 1
        return SimpleNamespace(device=(number,), eventData=xid, gpuInstanceId=instance[0] if instance else 0xFFFFFFFF)


class _Live(Fake):
    """The machine that a file beside this module names now."""

    def __init__(self, path: Path):
        self._path = path
        super().__init__(json.loads(path.read_text()))

    def _misbehave(self, name: str) -> None:
        self.of = json.loads(self._path.read_text())
        if self.of.get("note"):
            with open(self.of["note"], "a", encoding="ascii") as file:
                file.write(name + "\n")
        super()._misbehave(name)


if __name__ == "pynvml":
    _module = _Live(Path(__file__).with_name("machine.json"))
    for _name in dir(Fake):
        if _name.startswith(("nvml", "NVML")) and _name != "NVMLError":
            globals()[_name] = (
                (lambda name: lambda *given: getattr(_module, name)(*given))(_name)
                if callable(getattr(Fake, _name))
                else getattr(Fake, _name)
            )
    _ours = sys.modules.get("gpulayer_worker.inventory.nvml")
    if _ours is not None:  # the child that asks: what the machine shows beside NVML is made up too
        setattr(_ours, "devices_present", lambda root=None: bool(_module.of.get("present")))  # noqa: B010
