"""The process that asks NVML: one line of JSON for each question, one for each answer. See `nvmlguard`.

    {"ask": "machine"} | {"ask": "sample", "health": true} | {"ask": "use", "uuid": "GPU-…"}

The first line says, before anything is asked of NVML, whether devices are present. It ends with its standard input.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

from gpulayer_worker.inventory import nvml


def answer(nvidia: nvml.Nvml, question: dict[str, Any]) -> dict[str, Any]:
    """What is said to one question. Raises NVML's errors, KeyError for a device that is not there."""
    match question["ask"]:
        case "machine":
            return nvidia.machine()
        case "sample":
            return nvidia.sample(health=question.get("health", False))
        case "use":
            return nvidia.use(question["uuid"])
        case _:
            raise ValueError(f"no such question: {question['ask']!r}")


def main() -> int:
    """Exit code 0: nobody asks any more, or NVML can't be used and that was said."""
    import pynvml

    _say({"present": nvml.devices_present()})
    nvidia: nvml.Nvml | None = None
    for line in sys.stdin:
        try:
            nvidia = nvidia or nvml.Nvml(pynvml)
            _say({"answer": answer(nvidia, json.loads(line))})
        except (pynvml.NVMLError, AttributeError, KeyError, OSError, ValueError) as error:
            _say({"failed": _words(error), "over": nvidia is None})
            if nvidia is None:
                return 0  # what was loaded may be of an old driver: the next try is another process's
    return 0


def _words(error: Exception) -> str:
    """What failed. NVML's bindings keep to themselves what the loader said of the library."""
    words = str(error) or type(error).__name__
    if "Library" in words:
        try:
            ctypes.CDLL("libnvidia-ml.so.1")
        except OSError as loader:
            return f"{words} ({loader})"
    return words


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
