"""mlx, on CPU, mps, and CUDA where its package for that is installed; it shows one device at a time."""

from __future__ import annotations

import importlib
import re

from harness import Failed, explain_cuda


def probe(talk, targets, about):
    """Compute on each target."""
    mx = importlib.import_module("mlx.core")
    built_for = _built_for(mx, about["packages"])
    talk.build(mx.__version__, built_for)
    explain = explain_cuda("mlx", mx.__version__, built_for, about)
    for target in targets:
        talk.compute(target, _computation(mx, target, about), explain)


def _built_for(mx, packages):
    for name in packages:
        found = re.match(r"mlx-cuda-?(\d*)", name)
        if found:
            return found.group(1) or "12"
    return "mps" if _metal(mx) else "cpu"


def _metal(mx):
    return hasattr(mx, "metal") and bool(mx.metal.is_available())


def _computation(mx, target, about):
    kind = target["kind"]

    def compute(one, other):
        if kind == "mps" and not _metal(mx):
            raise Failed(f"mlx {mx.__version__} finds no Metal device", lasting=True)
        if kind == "cuda" and not _cuda(mx):
            install = "mlx[cuda13]" if str(about.get("cuda", "")).startswith("13") else "mlx[cuda12]"
            raise Failed(f"mlx has no CUDA backend here ({mx.__version__}); install {install}", lasting=True)
        if kind == "rocm":
            raise Failed(f"mlx has nothing for ROCm ({mx.__version__})", lasting=True)
        device = mx.Device(mx.cpu if kind == "cpu" else mx.gpu)
        mx.set_default_device(device)
        z = mx.matmul(mx.array(one, dtype=mx.float32), mx.array(other, dtype=mx.float32))
        total = mx.sum(z)
        mx.eval(z, total)
        return z.tolist(), float(total.item())

    return compute


def _cuda(mx):
    if hasattr(mx, "cuda"):
        return bool(mx.cuda.is_available())
    return not _metal(mx) and hasattr(mx, "is_available") and bool(mx.is_available(mx.gpu))
