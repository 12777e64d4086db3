"""Requirements that can't be read are refused in one line: what, where, what to do."""

from __future__ import annotations

from typing import Any

import pytest

from gpulayer.protocol.types import Requirements
from gpulayer_server.scheduling.asked import asked, problem_of

CUDA = {"accelerator": "cuda"}


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"accelerator": "gpu"}, "accelerator 'gpu': there are cuda, rocm, mps, cpu; did you mean cuda?"),
        ({"accelerator": "tpu"}, "accelerator 'tpu': there are cuda, rocm, mps, cpu"),
        ({**CUDA, "devices": -1}, "devices is a number of devices, 1,000 at most, not -1"),
        ({"devices": 2}, "devices is about devices: name their kind, like accelerator cuda"),
        ({"min_vram_bytes": 1}, "min_vram_bytes is about devices: name their kind, like accelerator cuda"),
        ({**CUDA, "min_vram_bytes": 0}, "min_vram_bytes is a number of bytes above 0, not 0"),
        ({"ram_bytes": -5}, "ram_bytes is a number of bytes above 0, not -5"),
        (
            {**CUDA, "devices": 2, "vram_share_bytes": 8},
            "vram_share_bytes takes a part of one device: leave devices 2 out, or the share",
        ),
        ({**CUDA, "min_capability": "sm_80"}, "min_capability 'sm_80' is no version: write it like 8.0"),
        ({**CUDA, "min_driver": "new"}, "min_driver 'new' is no version: write it like 535.104"),
        ({**CUDA, "device_names": (" ",)}, "device_names: ' ' is not one line of 1 to 200 letters"),
        ({"labels": ("a=\n",)}, "labels: 'a=\\n' is not one line of 1 to 200 letters"),
        ({"labels": ("team",)}, "label 'team' of workers: write it key=value"),
        ({"labels": ("=x",)}, "label '=x' of workers: write it key=value"),
        ({"labels": ("a=1",) * 65}, "labels has 64 entries at most, these are 65"),
        (
            {"frameworks": ("torch=>2.4",)},
            "framework 'torch=>2.4': '=>2.4' is no condition on versions; write it like '>=2.4'",
        ),
        (
            {"frameworks": ("torch 2.4",)},
            "framework 'torch 2.4': '2.4' is no condition on versions; write it like '>=2.4'",
        ),
        (
            {"frameworks": ("jax[cuda13]",)},
            "framework 'jax[cuda13]': '[cuda13]' is no condition on versions; write it like '>=2.4'",
        ),
        ({"frameworks": (">=2",)}, "framework '>=2': write a name, with versions or without, like 'torch>=2.4'"),
        (
            {"frameworks": ("pytorch",)},
            "framework 'pytorch': workers look for torch, jax, cupy, mlx, tensorflow; did you mean torch?",
        ),
        ({"frameworks": ("numpy",)}, "framework 'numpy': workers look for torch, jax, cupy, mlx, tensorflow"),
        ({"python": "3.11"}, "python '3.11': '3.11' is no condition on versions; write it like '>=3.11'"),
        ({"cpu_cores": 0}, "cpu_cores is a number of cores above 0, not 0"),
        ({"cpu_cores": float("nan")}, "cpu_cores is a number of cores above 0, not nan"),
        ({"os": "windows"}, "os 'windows': workers run on linux and darwin"),
        ({"arch": "a\nb"}, "arch 'a\\nb': write it like x86_64 or arm64"),
        ({"nodes": 0}, "nodes is a number of machines from 1 to 1,000, not 0"),
        ({"locality": "near"}, "locality 'near': there are prefer, require, spread, none"),
        ({"nodes": 2, "worker": "box"}, "worker 'box' is one machine: leave it out, or nodes 2"),
    ],
)
def test_what_is_wrong(fields: dict[str, Any], problem: str):
    requirements = Requirements(**fields)
    assert problem_of(requirements) == problem
    with pytest.raises(ValueError) as caught:
        asked(requirements)
    assert str(caught.value) == problem


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"accelerator": "cpu"},
        {"accelerator": "mps", "frameworks": ("mlx", "torch >= 2.4, < 3")},
        {**CUDA, "devices": 8, "min_capability": "9.0", "min_driver": "570.86.15", "device_names": ("A100*", "[AH]*")},
        {**CUDA, "vram_share_bytes": 8, "devices": 1},
        {"python": ">=3.10,!=3.12.*", "os": "macOS", "arch": "aarch64", "labels": ("a=b=c", "rack=")},
        {"nodes": 16, "locality": "require", "cpu_cores": 0.5, "ram_bytes": 1},
    ],
)
def test_what_can_be_read(fields: dict[str, Any]):
    assert problem_of(Requirements(**fields)) is None
    assert asked(Requirements(**fields)) is asked(Requirements(**fields))
