"""What is told of a framework, by one that behaves as it is told: real processes, made-up packages."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpulayer.protocol.machines import Device, Framework, Inventory
from gpulayer_worker.probes.asking import Ask, Asking
from gpulayer_worker.probes.outcomes import Results, told
from gpulayer_worker.probes.packages import look
from tests.support.frameworks import TORCH, card, install, interpreter, machine, remove

A, B, C = card("a"), card("b"), card("c")


def probed(python: str, name: str, inventory: Inventory, *, limit_s: float = 60.0) -> Framework:
    packages = look(python)
    assert packages.problem == ""
    ask = Ask(name=name, packages=packages, inventory=inventory, limit_s=limit_s)
    asking = Asking(ask)
    kinds = {device.uuid: device.kind for device in inventory.devices}
    results = Results(key=ask.key()).renewed(asking.run(ask.targets), asking.built_for, asked=ask.targets, kinds=kinds)
    return told(name, packages.version(name), results, inventory.devices)


def torch(
    folder: Path, more: str = "", *, inventory: Inventory, version: str = "2.13.0", limit_s: float = 60.0
) -> Framework:
    python = interpreter(folder / "env", {"torch": (version, TORCH + more)})
    return probed(python, "torch", inventory, limit_s=limit_s)


def test_each_device_computes_and_is_told_by_its_uuid(tmp_path: Path) -> None:
    framework = torch(tmp_path, inventory=machine(A, B))
    assert framework == Framework(
        name="torch", version="2.13.0", built_for="13.0", works=("cpu", "cuda"), devices=("GPU-a", "GPU-b")
    )


def test_a_cpu_build_never_counts_for_cuda(tmp_path: Path) -> None:
    more = '\n__version__ = "2.13.0+cpu"\nversion.cuda = None\n'
    framework = torch(tmp_path, more, inventory=machine(A, B), version="2.13.0+cpu")
    assert (framework.works, framework.devices, framework.built_for) == (("cpu",), (), "cpu")
    assert framework.problems == {"cuda": "torch is a CPU build (2.13.0+cpu)"}


def test_a_build_for_rocm_is_no_build_for_cuda(tmp_path: Path) -> None:
    more = '\n__version__ = "2.13.0+rocm6.2"\nversion.cuda = None\nversion.hip = "6.2.41133-dd7f95766"\n'
    framework = torch(tmp_path, more, inventory=machine(A))
    assert framework.problems == {"cuda": "torch is a ROCm build (2.13.0+rocm6.2)"}
    assert framework.built_for == "6.2"


TOO_OLD = "The NVIDIA driver on your system is too old (found version 12020). Please update your GPU driver"


@pytest.mark.parametrize("known", ["12.2", ""])
def test_a_driver_that_is_too_old_is_told_with_both_versions(tmp_path: Path, known: str) -> None:
    more = f"\ndef hook(name):\n    if name != 'cpu':\n        raise RuntimeError({TOO_OLD!r})\n"
    framework = torch(tmp_path, more, inventory=machine(A, cuda=known))
    assert framework.problems == {"cuda": "CUDA driver version is insufficient (driver 12.2, torch built for 13.0)"}
    assert framework.works == ("cpu",)


def test_an_error_of_another_kind_is_not_blamed_on_a_driver_that_is_new_enough(tmp_path: Path) -> None:
    more = "\ndef hook(name):\n    if name != 'cpu':\n        raise RuntimeError('No CUDA GPUs\\n are available')\n"
    assert torch(tmp_path, more, inventory=machine(A, cuda="13.1")).problems == {"cuda": "No CUDA GPUs are available"}


def test_a_wrong_result_is_no_result(tmp_path: Path) -> None:
    more = """
def hook(name):
    if name == "GPU-b":
        Tensor.__matmul__ = lambda self, other: Tensor([[0.0] * len(other.rows[0]) for row in self.rows])
"""
    framework = torch(tmp_path, more, inventory=machine(A, B))
    assert framework.devices == ("GPU-a",)
    assert framework.problems["cuda"].startswith("cuda:1: a matrix product came out wrong (")


def test_a_device_that_crashes_the_process_takes_no_other_along(tmp_path: Path) -> None:
    more = "\nimport signal\ndef hook(name):\n    if name == 'GPU-b':\n        os.kill(os.getpid(), signal.SIGSEGV)\n"
    framework = torch(tmp_path, more, inventory=machine(A, B, C))
    assert framework.works == ("cpu", "cuda")
    assert framework.devices == ("GPU-a", "GPU-c")
    assert framework.problems == {"cuda": "cuda:1: crashed (SIGSEGV)"}


def test_a_device_that_hangs_takes_no_other_along(tmp_path: Path) -> None:
    more = "\ndef hook(name):\n    if name == 'GPU-a':\n        time.sleep(3600)\n"
    framework = torch(tmp_path, more, inventory=machine(A, B), limit_s=3.0)
    assert framework.devices == ("GPU-b",)
    assert framework.problems == {"cuda": "cuda:0: gave no answer in 3 s"}


NO_LIBRARY = "libcudart.so.13: cannot open shared object file"
EXITS = "import os, sys; sys.stderr.write('so it goes\\n'); sys.stderr.flush(); os._exit(4)"


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (f"raise ImportError({NO_LIBRARY!r})", f"can't be imported: {NO_LIBRARY}"),
        ("import not_there", "can't be imported: ModuleNotFoundError: No module named 'not_there'"),
        ("raise SystemExit(3)", "can't be imported: 3"),
        ("import os; os.kill(os.getpid(), 11)", "crashed (SIGSEGV) while importing"),
        ("import os; os.kill(os.getpid(), 9)", "was killed (SIGKILL) while importing, perhaps for want of memory"),
        (EXITS, "ended with exit code 4 while importing: so it goes"),
        ("import time; time.sleep(3600)", "gave no answer in 3 s while importing"),
    ],
)
def test_what_can_not_be_imported_is_told_in_one_line(tmp_path: Path, source: str, problem: str) -> None:
    python = interpreter(tmp_path / "env", {"torch": ("2.13.0", source)})
    framework = probed(python, "torch", machine(A), limit_s=3.0 if "sleep" in source else 60.0)
    assert framework == Framework(name="torch", version="2.13.0", problems={"": problem})


@pytest.mark.parametrize("trouble", ["raise ImportError('no libcuda')", "os.kill(os.getpid(), 11)"])
def test_what_fails_to_import_beside_a_device_may_do_for_the_cpu(tmp_path: Path, trouble: str) -> None:
    framework = torch(tmp_path, f"\nif os.environ['CUDA_VISIBLE_DEVICES']:\n    {trouble}\n", inventory=machine(A))
    assert framework.works == ("cpu",)
    assert framework.problems["cuda"] in ("can't be imported: no libcuda", "crashed (SIGSEGV) while importing")


def test_rubbish_on_standard_output_does_no_harm(tmp_path: Path) -> None:
    more = """
os.write(1, b"x" * 300_000 + b"\\n{not json}\\n\\xff\\xfe no newline")
def hook(name):
    print("computing on", name, end="", flush=True)
    os.write(2, b"y" * 300_000)
"""
    assert torch(tmp_path, more, inventory=machine(A)).works == ("cpu", "cuda")


def test_a_framework_that_takes_the_standard_streams_away_still_gets_told(tmp_path: Path) -> None:
    more = "\nos.dup2(os.open(os.devnull, os.O_RDWR), 1)\nos.dup2(1, 2)\n"
    assert torch(tmp_path, more, inventory=machine(A)).works == ("cpu", "cuda")


def test_a_device_on_which_nothing_can_be_imported_takes_no_other_along(tmp_path: Path) -> None:
    more = """
if os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-b":
    raise ImportError("no such device")
def hook(name):
    if name == "GPU-b":
        os.kill(os.getpid(), 11)
"""
    framework = torch(tmp_path, more, inventory=machine(A, B))
    assert (framework.works, framework.devices) == (("cpu", "cuda"), ("GPU-a",))
    assert framework.problems == {"cuda": "cuda:1: can't be imported: no such device"}


def test_a_build_for_rocm_is_shown_its_devices_as_rocm_wants(tmp_path: Path) -> None:
    more = """
version.cuda, version.hip = None, "6.2.41133-dd7f95766"
def on(device):
    shown = os.environ["ROCR_VISIBLE_DEVICES"]
    return device if device == "cpu" else shown.split(",")[int(device[5:])] + os.environ.get("CUDA_VISIBLE_DEVICES", "")
def hook(name):
    if name not in ("cpu", "GPU-1", "GPU-2"):
        raise RuntimeError(name)
"""
    devices = [Device(uuid=f"GPU-{n}", kind="rocm", index=n) for n in (1, 2)]
    framework = torch(tmp_path, more, inventory=machine(*devices))
    assert (framework.works, framework.devices, framework.problems) == (("cpu", "rocm"), ("GPU-1", "GPU-2"), {})


def test_a_slice_of_a_card_gets_a_process_of_its_own(tmp_path: Path) -> None:
    more = "\nif ',' in os.environ['CUDA_VISIBLE_DEVICES']:\n    raise ImportError('more than one slice is shown')\n"
    slices = [Device(uuid=f"MIG-{n}", kind="cuda", index=0, parent="GPU-a", driver="580.1") for n in range(2)]
    framework = torch(tmp_path, more, inventory=machine(*slices))
    assert framework.devices == ("MIG-0", "MIG-1")
    assert framework.problems == {}


def test_a_computation_on_the_cpu_sees_no_device(tmp_path: Path) -> None:
    more = "\nassert os.environ['CUDA_VISIBLE_DEVICES'] == '', os.environ['CUDA_VISIBLE_DEVICES']\n"
    assert torch(tmp_path, more, inventory=machine()).works == ("cpu",)


def test_devices_are_shown_in_bus_order_with_small_pools_at_a_low_priority(tmp_path: Path) -> None:
    more = """
wanted = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b", "OMP_NUM_THREADS": "1"}
found = {name: os.environ.get(name) for name in wanted}
assert found == wanted, found
assert os.getpriority(os.PRIO_PROCESS, 0) >= 10
assert os.getsid(0) == os.getpgrp() == os.getpid()
"""
    assert torch(tmp_path, more, inventory=machine(A, B)).problems == {}


def test_no_secret_of_the_agent_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPULAYER_TOKEN", "secret")
    assert torch(tmp_path, "\nassert 'GPULAYER_TOKEN' not in os.environ\n", inventory=machine()).problems == {}


def test_packages_are_found_without_importing_them(tmp_path: Path) -> None:
    python = interpreter(tmp_path / "env", {"torch": ("2.13.0+cpu", "raise SystemExit"), "cupy-cuda12x": ("13.4", "")})
    packages = look(python)
    assert packages.names == ("torch", "cupy")
    assert (packages.version("torch"), packages.version("cupy")) == ("2.13.0+cpu", "13.4")
    assert packages.python.startswith("3.")


def test_what_is_known_of_packages_holds_until_something_is_installed_or_removed(tmp_path: Path) -> None:
    python = interpreter(tmp_path / "env", {"torch": ("2.13.0", "")})
    packages = look(python)
    assert packages.current(python)
    install(tmp_path / "env", "jax", "0.10.2", "")
    assert not packages.current(python)
    packages = look(python)
    assert packages.names == ("torch", "jax")
    remove(tmp_path / "env", "torch")
    assert not packages.current(python)
    assert look(python).names == ("jax",)


@pytest.mark.parametrize("content", [None, "#!/bin/sh\necho broken >&2\nexit 3\n"])
def test_an_interpreter_that_does_not_start_is_told_as_that(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "python"
    if content is not None:
        path.write_text(content)
        path.chmod(0o755)
    packages = look(str(path))
    assert packages.names == ()
    why = "broken" if content else "No such file or directory"
    assert packages.problem == f"the interpreter for jobs, {path}, does not say what it has: {why}"


def test_cupy_has_nothing_for_a_machine_without_devices(tmp_path: Path) -> None:
    python = interpreter(tmp_path / "env", {"cupy-cuda12x": ("13.4", "")})
    framework = probed(python, "cupy", machine())
    assert framework.works == ()
    assert framework.problems == {"cpu": "cupy computes on CUDA and ROCm devices only"}
