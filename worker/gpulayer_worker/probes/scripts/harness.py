"""What the scripts of all frameworks share: a computation with a known result, and how they tell what came of it."""

from __future__ import annotations

import json
import os
import re
import threading

_SIZE = 64


def operands():
    """Two square matrices of small whole numbers: every precision that a device may choose keeps them exact."""
    one = [[(7 * i + 3 * j) % 11 - 5 for j in range(_SIZE)] for i in range(_SIZE)]
    other = [[(5 * i + 2 * j) % 7 - 3 for j in range(_SIZE)] for i in range(_SIZE)]
    return one, other


def product(one, other):
    """Their product, by plain Python."""
    columns = [[row[j] for row in other] for j in range(len(other[0]))]
    return [[sum(map(int.__mul__, row, column)) for column in columns] for row in one]


class Failed(Exception):
    """Why a target can't be used, in words; `lasting`: until a version, the driver or a device changes."""

    def __init__(self, why, lasting=False):
        super().__init__(why)
        self.lasting = lasting


class Talk:
    """Tells the parent, line by line: whatever else is written to standard output lies between such lines."""

    def __init__(self, mark):
        self._mark = mark
        self._out = os.dup(1)
        self._lock = threading.Lock()

    def say(self, **fields):
        """One record."""
        line = "\n" + self._mark + json.dumps(fields) + "\n"
        with self._lock:
            os.write(self._out, line.encode())

    def at(self, stage):
        """What is about to be done: a crash, or no answer, is told with it."""
        self.say(stage=stage)

    def build(self, version, built_for):
        """The version as the module says it, and the version of CUDA or ROCm that it was built for."""
        self.say(version=str(version), built_for=str(built_for or ""))

    def unusable(self, why, lasting=False):
        """That nothing can be done with the framework at all."""
        self.say(problem=why, lasting=lasting)

    def compute(self, target, function, explain=None):
        """Do the computation for a target: `function(one, other)` gives the product's rows and their sum.

        `explain(error)` may make a better `Failed` of an error, or None.
        """
        self.at(f"computing on {target['name']}")
        one, other = operands()
        try:
            rows, total = function(one, other)
            self._check(rows, total, product(one, other))
        except Failed as failed:
            self.say(target=target["name"], why=str(failed), lasting=failed.lasting)
        except Exception as error:  # noqa: BLE001 - whatever a framework raises is what the probe is for
            better = (explain and explain(error)) or Failed(words(error))
            self.say(target=target["name"], why=str(better), lasting=better.lasting)
        else:
            self.say(target=target["name"], why="")

    @staticmethod
    def _check(rows, total, expected):
        want = sum(map(sum, expected))
        wrong = sum(1 for i, row in enumerate(expected) for j, value in enumerate(row) if rows[i][j] != value)
        if wrong:
            raise Failed(f"a matrix product came out wrong ({wrong} of {_SIZE * _SIZE} numbers)")
        if total != want:
            raise Failed(f"a sum came out wrong ({total!r}, should be {want})")


def words(error):
    """An error in one line."""
    text = " ".join(str(error).split())
    if isinstance(error, ModuleNotFoundError) or not text:
        return f"{type(error).__name__}: {text}".rstrip(": ")
    return text if len(text) <= 240 else text[:237] + "..."


def explain_cuda(name, version, built_for, about):
    """What makes better words of errors of CUDA: `about` has `cuda` and `driver`, as the machine's inventory knows."""

    def explain(error):
        text = str(error)
        low = text.lower()
        found = re.search(r"found version (\d+)", text)
        driver = about.get("cuda") or (_dotted(int(found.group(1))) if found else about.get("driver")) or "unknown"
        insufficient = "driver" in low and ("too old" in low or "insufficient" in low)
        if insufficient or _newer(built_for, about.get("cuda")):
            return Failed(
                f"CUDA driver version is insufficient (driver {driver}, {name} built for {built_for})", lasting=True
            )
        if "no kernel image" in low or "no device code" in low or "cuda_error_no_binary_for_gpu" in low:
            return Failed(f"{name} {version} has no code for this device's compute capability", lasting=True)
        if "out of memory" in low or "resource_exhausted" in low or "alloc_failed" in low:
            return Failed("out of memory: what runs there leaves too little for a small computation")
        return None

    return explain


def _dotted(number):
    """12020 -> '12.2'."""
    return f"{number // 1000}.{number % 1000 // 10}"


def _newer(built_for, driver):
    """Whether a build wants a newer major version than the driver has; minor ones are compatible within a major."""
    one, other = re.match(r"\d+", built_for or ""), re.match(r"\d+", driver or "")
    return bool(one and other and int(one.group()) > int(other.group()))
