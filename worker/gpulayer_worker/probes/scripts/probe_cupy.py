"""cupy, on CUDA and ROCm; it has nothing for CPUs."""

from __future__ import annotations

import importlib

from harness import Failed, explain_cuda


def probe(talk, targets, about):
    """Compute on each target."""
    cupy = importlib.import_module("cupy")
    runtime = cupy.cuda.runtime
    hip = bool(getattr(runtime, "is_hip", False))
    built_for = _built_for(runtime, hip)
    talk.build(cupy.__version__, built_for)
    explain = explain_cuda("cupy", cupy.__version__, built_for, about)
    for target in targets:
        talk.compute(target, _computation(cupy, target, hip), explain)


def _built_for(runtime, hip):
    """The version of CUDA that it runs on: 12080 -> '12.8'; ROCm packs its own as 60241133 -> '6.2'."""
    try:
        number = int(runtime.runtimeGetVersion())
    except Exception:  # noqa: BLE001 - a missing library shows in the computation, with its words
        return ""
    return f"{number // 10000000}.{number // 100000 % 100}" if hip else f"{number // 1000}.{number % 1000 // 10}"


def _computation(cupy, target, hip):
    def compute(one, other):
        if hip != (target["kind"] == "rocm"):
            build = "ROCm" if hip else "CUDA"
            raise Failed(f"cupy is a {build} build ({cupy.__version__})", lasting=True)
        with cupy.cuda.Device(target["index"]):
            x = cupy.asarray(one, dtype=cupy.float32)
            y = cupy.asarray(other, dtype=cupy.float32)
            z = x @ y
            return z.tolist(), float(z.sum())

    return compute
