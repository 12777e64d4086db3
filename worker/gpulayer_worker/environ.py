"""The environment of jobs, built from an allow-list: no credential of the agent's comes through."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from gpulayer.protocol.messages import Assign
from gpulayer.protocol.types import Device
from gpulayer_worker.inventory.limits import allowed_cores, node_cores

_NAMES = frozenset(
    {
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "LANG",
        "LANGUAGE",
        "TZ",
        "TMPDIR",
        "TERM",
        "COLUMNS",
        "LINES",
        "HOSTNAME",
        "LD_LIBRARY_PATH",
        "DYLD_LIBRARY_PATH",
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
        "CONDA_DEFAULT_ENV",
        "MAMBA_ROOT_PREFIX",
        "XDG_CACHE_HOME",
        "XDG_CONFIG_HOME",
        "XDG_DATA_HOME",
        "XDG_RUNTIME_DIR",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "REQUESTS_CA_BUNDLE",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "NO_PROXY",
        "http_proxy",
        "https_proxy",
        "no_proxy",
        "HF_HOME",
        "HF_HUB_CACHE",
        "TORCH_HOME",
        "MPLBACKEND",
        "OPENBLAS_CORETYPE",
        "OPENBLAS_L2_SIZE",
        "OMP_NUM_THREADS",
        "MKL_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "GPULAYER_FAILPOINTS",
    }
)
_PREFIXES = ("LC_", "CUDA_", "NVIDIA_", "NCCL_", "ROCM_", "HIP_", "ROCR_")


def allowed(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """What of the agent's environment a job may see."""
    source = os.environ if environ is None else environ
    return {name: value for name, value in source.items() if name in _NAMES or name.startswith(_PREFIXES)}


def for_devices(devices: tuple[Device, ...], present: tuple[Device, ...]) -> dict[str, str | None]:
    """The variables that show a job its own devices and no other: by UUID, MIG slices by theirs; None unsets.

    `present`: those of the machine. Where it has none of a kind, nothing is said of that kind.
    """
    kinds = {device.kind for device in (*present, *devices)}
    env: dict[str, str | None] = {}
    if "cuda" in kinds:
        visible = ",".join(device.uuid for device in devices if device.kind == "cuda")
        env |= {"CUDA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if "rocm" in kinds:
        own = [device.uuid for device in devices if device.kind == "rocm"]
        # HIP counts what ROCR shows; for both, what names no device ends the list
        env |= {
            "ROCR_VISIBLE_DEVICES": ",".join(own) or "-1",
            "HIP_VISIBLE_DEVICES": ",".join(map(str, range(len(own)))) or "-1",
        }
    return env


def for_nodes(assign: Assign) -> dict[str, str]:
    """What a task of a job on many machines is told of them: its rank, how many, the workers' names by rank."""
    if not assign.nodes:
        return {}
    return {
        "GPULAYER_NODE_RANK": str(assign.index),
        "GPULAYER_NODES": str(len(assign.nodes)),
        "GPULAYER_NODE_NAMES": ",".join(assign.nodes),
    }


def bound_cpus(assign: Assign, root: Path = Path("/")) -> tuple[int, ...]:
    """The cores next to a job's devices, of those that we may use, where it asked for that; () for no bounds.

    Where a machine does not say which cores those are, a job runs on all of them.
    """
    if not assign.spec.requirements.bind_cpus:
        return ()
    nodes = {device.numa for device in assign.devices if device.numa is not None}
    near = frozenset[int]().union(*(node_cores(node, root) for node in nodes))
    return tuple(sorted(near & allowed_cores()))
