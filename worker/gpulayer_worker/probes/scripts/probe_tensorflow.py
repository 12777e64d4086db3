"""tensorflow, on CPU, CUDA, ROCm and (with tensorflow-metal) mps."""

from __future__ import annotations

import importlib

from harness import Failed, explain_cuda


def probe(talk, targets, about):
    """Compute on each target."""
    tf = importlib.import_module("tensorflow")
    build = dict(tf.sysconfig.get_build_info())
    built_for = str(build.get("cuda_version") or build.get("rocm_version") or "")
    gpu = bool(build.get("is_cuda_build") or build.get("is_rocm_build"))
    metal = "tensorflow-metal" in about["packages"]
    talk.build(tf.__version__, built_for if gpu else ("mps" if metal else "cpu"))
    explain = explain_cuda("tensorflow", tf.__version__, built_for if gpu else "", about)
    for target in targets:
        talk.compute(target, _computation(tf, target, _why_not(tf, target["kind"], build, metal)), explain)


def _why_not(tf, kind, build, metal):
    """Why this build has nothing for a kind of device; '' where it has."""
    version = tf.__version__
    if kind == "cuda" and not build.get("is_cuda_build"):
        other = "ROCm" if build.get("is_rocm_build") else "CPU"
        return f"tensorflow is a {other} build ({version})"
    if kind == "rocm" and not build.get("is_rocm_build"):
        other = "CUDA" if build.get("is_cuda_build") else "CPU"
        return f"tensorflow is a {other} build ({version})"
    if kind == "mps" and not metal:
        return f"tensorflow-metal is not installed (tensorflow {version})"
    return ""


def _computation(tf, target, why_not):
    kind, index = target["kind"], target["index"]

    def compute(one, other):
        if why_not:
            raise Failed(why_not, lasting=True)
        name = "/CPU:0"
        if kind != "cpu":
            shown = len(tf.config.list_physical_devices("GPU"))
            if index >= shown:
                raise Failed(f"tensorflow sees {shown} device(s), not this one: its CUDA libraries may be missing")
            name = f"/GPU:{index}"
        with tf.device(name):
            z = tf.linalg.matmul(tf.constant(one, dtype=tf.float32), tf.constant(other, dtype=tf.float32))
            total = tf.reduce_sum(z)
        if not str(z.device).upper().endswith(name[1:]):
            raise Failed(f"tensorflow computed on {z.device} instead of {name}")
        return z.numpy().tolist(), float(total)

    return compute
