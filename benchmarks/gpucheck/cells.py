"""What the checks run on the worker."""

from __future__ import annotations

#: A matrix product on the device against the same on the CPU; prints one JSON object.
PRODUCT = """
import json, os, time
report = {"visible": os.environ.get("CUDA_VISIBLE_DEVICES"), "torch": None}
try:
    import torch
except ImportError:
    report["error"] = abs(sum(number * number for number in range(1000)) - 332833500)
else:
    device = "cuda" if ON_CUDA else "cpu"
    torch.manual_seed(0)
    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    here = a.double() @ b.double()
    there = (a.to(device) @ b.to(device)).double().cpu()
    report.update(torch=torch.__version__, error=float((there - here).abs().max() / here.abs().max()))
    report["devices"] = torch.cuda.device_count()
    if ON_CUDA:
        report.update(name=torch.cuda.get_device_name(0), peak_bytes=torch.cuda.max_memory_allocated())
        x = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
        for _ in range(3):
            x @ x
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(20):
            x @ x
        torch.cuda.synchronize()
        report["bf16_tflops"] = 20 * 2 * 8192**3 / (time.perf_counter() - start) / 1e12
print(json.dumps(report))
"""

#: Says what a cell that asks for no accelerator sees.
WITHOUT = """
import json, os
try:
    import torch
    count = torch.cuda.device_count()
except ImportError:
    count = 0
print(json.dumps({"visible": os.environ.get("CUDA_VISIBLE_DEVICES"), "devices": count}))
"""

#: Prints lines for about three seconds; on a device each is computed there, in memory that has to stay.
LINES = """
import time
try:
    import torch
    total = torch.zeros(1, dtype=torch.int64, device="cuda" if ON_CUDA else "cpu")
except ImportError:
    total = 0
for number in range(COUNT):
    total += number
    print(f"line {number} {int(total)}", flush=True)
    time.sleep(0.03)
"""

#: Says its process id, then holds a gigabyte of the device for some seconds (COUNT, or four).
HOLD = """
import os, time
print(os.getpid(), flush=True)
if ON_CUDA:
    import torch
    held = torch.ones(1 << 28, dtype=torch.float32, device="cuda")
    torch.cuda.synchronize()
time.sleep(COUNT or 4)
"""

#: Ends as programs do on a device whose memory is broken.
SICK = """
import sys
print("RuntimeError: CUDA error: uncorrectable ECC error encountered", file=sys.stderr)
sys.exit(1)
"""


def on(body: str, accelerator: str, count: int = 0) -> str:
    """A cell's body for an accelerator."""
    return f"ON_CUDA, COUNT = {accelerator == 'cuda'}, {count}\n{body}"


def wanted_lines(count: int) -> str:
    """What `LINES` prints."""
    return "".join(f"line {number} {number * (number + 1) // 2}\n" for number in range(count))
