"""The probes of jax, cupy, mlx and tensorflow, by stand-ins that have devices; and that of the CUDA driver alone."""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gpulayer.protocol.machines import Device, Framework
from gpulayer_worker.probes import probe_all, scripts
from tests.support.frameworks import card, interpreter, machine

A, B = card("a"), card("b")
TENSOR = """
import contextlib, os
SHOWN = [each for each in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if each]
float32 = "float32"
HERE = ["cpu:0"]


class Tensor:
    def __init__(self, rows, device=None):
        self.rows, self.device = rows, device or HERE[-1]

    def __matmul__(self, other):
        columns = list(zip(*other.rows))
        return Tensor([[float(sum(a * b for a, b in zip(row, column))) for column in columns] for row in self.rows])

    def __float__(self):
        return self.rows

    def numpy(self):
        return self

    item = __float__

    def devices(self):
        return {self.device}

    def tolist(self):
        return self.rows

    def sum(self):
        return Tensor(float(sum(map(sum, self.rows))))


@contextlib.contextmanager
def on(device):
    HERE.append(device)
    yield
    HERE.pop()
"""
JAX = (
    TENSOR
    + """
import sys, types
__version__ = "0.10.2"
GPU = True


class Device:
    def __init__(self, platform, index):
        self.platform, self.index = platform, index


CPU = [Device("cpu", 0)]
GPUS = [Device("gpu", index) for index in range(len(SHOWN))]


def devices(platform):
    if platform == "cpu":
        return CPU
    if not GPU:
        raise RuntimeError("Unknown backend: 'cuda' requested, but no platforms of it are present.")
    return GPUS


def device_put(value, device):
    return Tensor(value.rows, device)


default_device = on
numpy = types.ModuleType("jax.numpy")
numpy.asarray = lambda rows, dtype: Tensor(rows)
numpy.matmul = lambda one, other, precision: one @ other
numpy.sum = lambda value: value.sum()
sys.modules["jax.numpy"] = numpy
"""
)
CUPY = (
    TENSOR
    + """
__version__ = "13.4.0"
asarray = lambda rows, dtype: Tensor(rows)


class cuda:
    Device = staticmethod(on)

    class runtime:
        is_hip = False
        runtimeGetVersion = staticmethod(lambda: 12080)
"""
)
TENSORFLOW = (
    TENSOR
    + """
__version__ = "2.20.0"
BUILD = {"is_cuda_build": True, "is_rocm_build": False, "cuda_version": "12.5.1"}
PREFIX = "/job:localhost/replica:0/task:0/device:"
device = lambda name: on(PREFIX + name[1:])
constant = lambda rows, dtype: Tensor(rows)
reduce_sum = lambda value: value.sum()


class sysconfig:
    get_build_info = staticmethod(lambda: BUILD)


class config:
    list_physical_devices = staticmethod(lambda kind: SHOWN)


class linalg:
    matmul = staticmethod(lambda one, other: one @ other)
"""
)
MLX = ""
CORE = (
    TENSOR
    + """
import types
__version__ = "0.32.4"
cpu, gpu = "cpu", "gpu"
Device = str
set_default_device = HERE.append
array = lambda rows, dtype: Tensor(rows)
matmul = lambda one, other: one @ other
sum = lambda value: Tensor.sum(value)
eval = lambda *values: None
METAL, CUDA = False, False
metal = types.SimpleNamespace(is_available=lambda: METAL)
cuda = types.SimpleNamespace(is_available=lambda: CUDA)
if len(SHOWN) > 1:
    raise ImportError("more than one device is shown")
Tensor.sum = lambda self: Tensor(float(__builtins__["sum"](map(__builtins__["sum"], self.rows))))
Tensor.__matmul__ = lambda one, other: Tensor(
    [[float(__builtins__["sum"](a * b for a, b in zip(r, c))) for c in zip(*other.rows)] for r in one.rows]
)
"""
)
MPS = Device(uuid="mps", kind="mps", index=0, unified=True)


def probed(folder: Path, packages: dict[str, tuple[str, str]], *devices: Device, cuda: str = "13.0") -> Framework:
    """What is told of the first of these packages."""
    python = interpreter(folder / "env", packages)
    if "mlx" in packages:
        next((folder / "env").glob("lib/python*/site-packages/mlx")).joinpath("core.py").write_text(packages["mlx"][1])
    return probe_all(python, machine(*devices, cuda=cuda))[0]


def test_jax_with_a_plugin_computes_on_each_device(tmp_path: Path) -> None:
    framework = probed(tmp_path, {"jax": ("0.10.2", JAX), "jax-cuda12-plugin": ("0.10.2", "")}, A, B)
    assert framework == Framework(
        name="jax", version="0.10.2", built_for="12", works=("cpu", "cuda"), devices=("GPU-a", "GPU-b")
    )


@pytest.mark.parametrize(("cuda", "extra"), [("13.0", "cuda13"), ("12.2", "cuda12"), ("", "cuda12")])
def test_a_jax_for_cpus_never_counts_for_cuda(tmp_path: Path, cuda: str, extra: str) -> None:
    framework = probed(tmp_path, {"jax": ("0.10.2", JAX.replace("GPU = True", "GPU = False"))}, A, cuda=cuda)
    assert (framework.works, framework.built_for) == (("cpu",), "cpu")
    assert framework.problems == {
        "cuda": f"jax sees no CUDA device: jaxlib is a CPU build; install jax[{extra}]",
    }


def test_a_jax_that_falls_back_to_the_cpu_does_not_count(tmp_path: Path) -> None:
    packages = {"jax": ("0.10.2", JAX.replace('Device("gpu"', 'Device("cpu"')), "jax-cuda12-plugin": ("0.10.2", "")}
    framework = probed(tmp_path, packages, A)
    assert framework.works == ("cpu",)
    assert framework.problems["cuda"].startswith("jax sees no CUDA device")


def test_a_jax_whose_plugin_fails_is_told_in_its_words(tmp_path: Path) -> None:
    packages = {"jax": ("0.10.2", JAX.replace("GPU = True", "GPU = False")), "jax-cuda13-plugin": ("0.10.2", "")}
    framework = probed(tmp_path, packages, A, cuda="13.0")
    assert framework.problems["cuda"].startswith("Unknown backend: 'cuda' requested")
    framework = probed(tmp_path, packages, A, cuda="12.2")
    assert framework.problems == {"cuda": "CUDA driver version is insufficient (driver 12.2, jax built for 13)"}


def test_cupy_computes_on_each_device(tmp_path: Path) -> None:
    framework = probed(tmp_path, {"cupy-cuda12x": ("13.4.0", ""), "cupy": ("13.4.0", CUPY)}, A, B)
    assert (framework.built_for, framework.works, framework.devices) == ("12.8", ("cuda",), ("GPU-a", "GPU-b"))


def test_tensorflow_computes_on_each_device(tmp_path: Path) -> None:
    framework = probed(tmp_path, {"tensorflow": ("2.20.0", TENSORFLOW)}, A, B)
    assert (framework.built_for, framework.works) == ("12.5.1", ("cpu", "cuda"))
    assert framework.devices == ("GPU-a", "GPU-b")


def test_a_tensorflow_for_cpus_never_counts_for_cuda(tmp_path: Path) -> None:
    packages = {"tensorflow": ("2.20.0", TENSORFLOW.replace('"is_cuda_build": True', '"is_cuda_build": False'))}
    framework = probed(tmp_path, packages, A)
    assert framework.problems == {"cuda": "tensorflow is a CPU build (2.20.0)"}
    assert framework.built_for == "cpu"


def test_a_tensorflow_without_its_libraries_sees_no_device(tmp_path: Path) -> None:
    framework = probed(
        tmp_path, {"tensorflow": ("2.20.0", TENSORFLOW.replace("lambda kind: SHOWN", "lambda kind: []"))}, A
    )
    assert framework.problems == {
        "cuda": "tensorflow sees 0 device(s), not this one: its CUDA libraries may be missing"
    }


def test_mlx_is_for_cpus_on_linux_and_for_mps_on_a_mac(tmp_path: Path) -> None:
    linux = probed(tmp_path, {"mlx": ("0.32.4", CORE)})
    assert (linux.works, linux.built_for) == (("cpu",), "cpu")
    mac = probed(tmp_path, {"mlx": ("0.32.4", CORE.replace("METAL, CUDA = False", "METAL, CUDA = True"))}, MPS)
    assert (mac.works, mac.devices, mac.built_for) == (("cpu", "mps"), ("mps",), "mps")


def test_mlx_with_its_cuda_backend_is_shown_one_device_at_a_time(tmp_path: Path) -> None:
    source = CORE.replace("METAL, CUDA = False, False", "METAL, CUDA = False, True")
    framework = probed(tmp_path, {"mlx": ("0.32.4", source), "mlx-cuda-12": ("0.32.4", "")}, A, B)
    assert (framework.built_for, framework.devices) == ("12", ("GPU-a", "GPU-b"))


# ---------------------------------------------------------------- the driver alone


class Cuda:
    """libcuda of one device, as far as the script calls it."""

    def __init__(self, **fails: int) -> None:
        self.fails = fails
        self.memory = b""

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            if name == "cuGetErrorString":
                arguments[1]._obj.value = b"some trouble"
            if name == "cuMemsetD32_v2":
                self.memory = int(arguments[1].value).to_bytes(4, "little") * arguments[2].value
            if name == "cuMemcpyDtoH_v2":
                ctypes.memmove(arguments[0], self.memory, arguments[2].value)
            return self.fails.get(name, 0)

        return call


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The script."""
    monkeypatch.syspath_prepend(str(Path(scripts.__file__).parent))
    yield importlib.import_module("probe_driver")
    for name in ("probe_driver", "harness"):
        sys.modules.pop(name, None)


class Talk:
    """Keeps what a script says."""

    def __init__(self) -> None:
        self.said: list[dict[str, Any]] = []

    def say(self, **fields: Any) -> None:
        self.said.append(fields)

    def at(self, stage: str) -> None: ...

    def build(self, version: str, built_for: str) -> None: ...


@pytest.mark.parametrize(
    ("fails", "why"),
    [
        ({}, ""),
        ({"cuInit": 999}, "cuInit failed: some trouble (999)"),
        ({"cuMemcpyDtoH_v2": 214}, "cuMemcpyDtoH_v2 failed: some trouble (214)"),
        ({"cuMemAlloc_v2": 2}, "out of memory: what runs there leaves too little for a small computation"),
    ],
)
def test_the_driver_fills_copies_and_reads_memory(
    driver: ModuleType, monkeypatch: pytest.MonkeyPatch, fails: dict[str, int], why: str
) -> None:
    monkeypatch.setattr(driver.ctypes, "CDLL", lambda name: Cuda(**fails))
    talk = Talk()
    driver.probe(talk, [{"name": "GPU-a", "kind": "cuda", "index": 0}], {"cuda": "13.0"})
    assert [each["why"] for each in talk.said] == [why]


def test_memory_that_comes_back_wrong_is_told(driver: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda()
    monkeypatch.setattr(cuda, "cuMemsetD32_v2", lambda *arguments: 0, raising=False)
    cuda.memory = bytes(16 << 20)
    monkeypatch.setattr(driver.ctypes, "CDLL", lambda name: cuda)
    talk = Talk()
    driver.probe(talk, [{"name": "GPU-a", "kind": "cuda", "index": 0}], {})
    assert [each["why"] for each in talk.said] == ["memory that was filled and copied came back wrong"]
