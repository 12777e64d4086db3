"""Interpreters with frameworks made up for a test: a virtual environment with packages that behave as they are told."""

from __future__ import annotations

import venv
from collections.abc import Mapping
from pathlib import Path

from gpulayer.protocol.machines import Device, Inventory

TORCH = '''
"""Computes as torch does, in plain Python; `HOOK` runs with the device's UUID, or 'cpu', before each computation."""
import os, sys, time

__version__ = "2.13.0+cu130"
float32 = "float32"


class version:
    cuda = "13.0"
    hip = None


class backends:
    class mps:
        is_built = staticmethod(lambda: False)
        is_available = staticmethod(lambda: False)


class cuda:
    @staticmethod
    def get_device_properties(index):
        return object()


def set_num_threads(count):
    pass


def hook(name):
    pass


def on(device):
    if device == "cpu":
        return device
    return os.environ["CUDA_VISIBLE_DEVICES"].split(",")[int(device.partition(":")[2])]


class Tensor:
    def __init__(self, rows):
        self.rows = rows

    def __matmul__(self, other):
        columns = list(zip(*other.rows))
        return Tensor([[float(sum(a * b for a, b in zip(row, column))) for column in columns] for row in self.rows])

    def cpu(self):
        return self

    def tolist(self):
        return self.rows

    def sum(self):
        return Tensor(sum(map(sum, self.rows)))

    def item(self):
        return self.rows


def tensor(rows, dtype, device):
    hook(on(device))
    return Tensor(rows)

'''


def interpreter(folder: Path, packages: Mapping[str, tuple[str, str]]) -> str:
    """The path of a new interpreter that has these packages: version and source by name."""
    venv.create(folder, with_pip=False, symlinks=True)
    for name, (version, source) in packages.items():
        install(folder, name, version, source)
    return str(folder / "bin" / "python")


def site(folder: Path) -> Path:
    """Where such an interpreter's packages lie."""
    return next((folder / "lib").glob("python*/site-packages"))


def install(folder: Path, name: str, version: str, source: str) -> None:
    """Add a package, or put another version in its place."""
    packages = site(folder)
    remove(folder, name)
    note = packages / f"{name.replace('-', '_')}-{version}.dist-info"
    note.mkdir()
    (note / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    module = packages / name.replace("-", "_") / "__init__.py"
    module.parent.mkdir(exist_ok=True)
    module.write_text(source)


def remove(folder: Path, name: str) -> None:
    """Take what says that a package is installed away."""
    for note in site(folder).glob(f"{name.replace('-', '_')}-*.dist-info"):
        (note / "METADATA").unlink()
        note.rmdir()


def machine(*devices: Device, cuda: str = "13.0") -> Inventory:
    """A machine with these devices."""
    return Inventory(
        host="box",
        os="linux",
        arch="x86_64",
        cpu_cores=2,
        ram_bytes=8 << 30,
        python="3.11.7",
        devices=devices,
        cuda=cuda,
    )


def card(letter: str, *, driver: str = "580.65.06", sick: str = "") -> Device:
    """A CUDA device GPU-<letter>, in the order of the alphabet."""
    return Device(uuid=f"GPU-{letter}", index=ord(letter) - ord("a"), kind="cuda", name="RTX", driver=driver, sick=sick)
