"""The environment of jobs, built from an allow-list: no credential of the agent's comes through."""

from __future__ import annotations

import os
from collections.abc import Mapping

from gpulayer.protocol.types import Device

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
_PREFIXES = ("LC_", "CUDA_", "NVIDIA_", "NCCL_", "ROCM_", "HIP_")


def allowed(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """What of the agent's environment a job may see."""
    source = os.environ if environ is None else environ
    return {name: value for name, value in source.items() if name in _NAMES or name.startswith(_PREFIXES)}


def for_devices(devices: tuple[Device, ...], present: tuple[Device, ...]) -> dict[str, str | None]:
    """The variables that show a job its own devices and no other: by UUID, in bus order; None unsets."""
    if not any(device.kind == "cuda" for device in present):
        return {}
    visible = ",".join(device.uuid for device in devices if device.kind == "cuda")
    return {"CUDA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
