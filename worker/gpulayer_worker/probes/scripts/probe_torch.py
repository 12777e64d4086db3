"""torch, on CPU, CUDA, ROCm (which torch calls cuda) and mps."""

from __future__ import annotations

import importlib

from harness import Failed, explain_cuda


def probe(talk, targets, about):
    """Compute on each target."""
    torch = importlib.import_module("torch")
    version = str(torch.__version__)
    cuda, hip = torch.version.cuda, getattr(torch.version, "hip", None)
    metal = hasattr(torch.backends, "mps") and torch.backends.mps.is_built()
    talk.build(version, _short(cuda) or _short(hip) or ("mps" if metal else "cpu"))
    torch.set_num_threads(1)
    explain = explain_cuda("torch", version, _short(cuda), about)
    for target in targets:
        talk.compute(target, _computation(torch, target, _why_not(torch, target["kind"])), explain)


def _short(version):
    """'13.0' of CUDA, '6.2' of ROCm's '6.2.41133-dd7f95766'."""
    return ".".join(str(version).split(".")[:2]) if version else ""


def _why_not(torch, kind):
    """Why this build has nothing for a kind of device; '' where it has."""
    version, cuda, hip = torch.__version__, torch.version.cuda, getattr(torch.version, "hip", None)
    if kind == "cuda" and not cuda:
        return f"torch is a ROCm build ({version})" if hip else f"torch is a CPU build ({version})"
    if kind == "rocm" and not hip:
        return f"torch is a CUDA build ({version})" if cuda else f"torch is a CPU build ({version})"
    if kind == "mps" and not (hasattr(torch.backends, "mps") and torch.backends.mps.is_built()):
        return f"torch is built without mps ({version})"
    return ""


def _computation(torch, target, why_not):
    kind, index = target["kind"], target["index"]
    name = {"cpu": "cpu", "mps": "mps"}.get(kind, f"cuda:{index}")

    def compute(one, other):
        if why_not:
            raise Failed(why_not, lasting=True)
        if kind == "mps" and not torch.backends.mps.is_available():
            raise Failed("torch finds no mps device: this macOS is too old for it, or has none", lasting=True)
        if kind == "cuda":
            _same_device(torch, index, target["name"])
        x = torch.tensor(one, dtype=torch.float32, device=name)
        y = torch.tensor(other, dtype=torch.float32, device=name)
        z = x @ y
        return z.cpu().tolist(), float(z.sum().item())

    return compute


def _same_device(torch, index, uuid):
    """Raise Failed where the device at an index is another one than was asked for; old versions don't tell."""
    shown = str(getattr(torch.cuda.get_device_properties(index), "uuid", ""))
    if shown and uuid.startswith("GPU-") and shown not in uuid:
        raise Failed(f"device {index} is GPU-{shown} where {uuid} was asked for")
