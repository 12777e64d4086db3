"""jax, on CPU, CUDA, ROCm and (with jax-metal) mps; a computation that fell back to another device does not count."""

from __future__ import annotations

import importlib
import re

from harness import Failed, explain_cuda, words

_PLATFORMS = {"cpu": "cpu", "cuda": "cuda", "rocm": "rocm", "mps": "METAL"}
_LABELS = {"cuda": "CUDA", "rocm": "ROCm", "mps": "Metal"}


def probe(talk, targets, about):
    """Compute on each target."""
    jax = importlib.import_module("jax")
    numpy = importlib.import_module("jax.numpy")
    built_for = _built_for(about["packages"])
    talk.build(jax.__version__, built_for)
    explain = explain_cuda("jax", jax.__version__, built_for, about)
    for target in targets:
        talk.compute(target, _computation(jax, numpy, target, built_for, about), explain)


def _built_for(packages):
    """By the plugin that is installed: '12' of jax-cuda12-plugin; 'cpu' without one."""
    for name in packages:
        found = re.match(r"jax-(?:cuda|rocm)(\d+)-(?:plugin|pjrt)", name)
        if found:
            return _runtime() or found.group(1)
        if name == "jax-metal":
            return "mps"
    found = re.search(r"\+(?:cuda|rocm)(\d+)", packages.get("jaxlib", ""))
    return found.group(1) if found else "cpu"


def _runtime():
    """The version of CUDA that the plugin was built for, where it says so: 12080 -> '12.8'."""
    try:
        number = int(importlib.import_module("jax._src.lib").cuda_versions.cuda_runtime_build_version())
    except Exception:  # noqa: BLE001 - it belongs to no public interface, and the plugin's name says the major version
        return ""
    return f"{number // 1000}.{number % 1000 // 10}"


def _computation(jax, numpy, target, built_for, about):
    def compute(one, other):
        device = _device(jax, target, built_for, about)
        with jax.default_device(device):
            x = jax.device_put(numpy.asarray(one, dtype="float32"), device)
            y = jax.device_put(numpy.asarray(other, dtype="float32"), device)
            z = numpy.matmul(x, y, precision="highest")
            total = numpy.sum(z)
        if set(z.devices()) != {device}:
            raise Failed(f"jax computed on {', '.join(map(str, z.devices()))} instead of {device}")
        return z.tolist(), float(total)

    return compute


def _device(jax, target, built_for, about):
    kind, index = target["kind"], target["index"]
    try:
        devices = jax.devices(_PLATFORMS[kind])
    except RuntimeError as error:
        if kind == "cpu" or built_for != "cpu":
            raise
        label = _LABELS[kind]
        raise Failed(
            f"jax sees no {label} device: jaxlib is a CPU build; install {_remedy(kind, about)}", lasting=True
        ) from error
    if any(device.platform == "cpu" for device in devices) and kind != "cpu":
        raise Failed(f"jax sees no {_LABELS[kind]} device: {words(RuntimeError(devices))}")
    if index >= len(devices):
        raise Failed(f"jax sees {len(devices)} device(s), not this one")
    return devices[index]


def _remedy(kind, about):
    """Which install would bring devices of a kind."""
    if kind != "cuda":
        return {"rocm": "jax[rocm]", "mps": "jax-metal"}[kind]
    found = re.match(r"\d+", about.get("cuda") or "")
    return "jax[cuda13]" if found and int(found.group()) >= 13 else "jax[cuda12]"
