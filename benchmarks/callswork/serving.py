"""The half of a contestant that is the same for all: requests on standard input, answers on standard output.

Each is a line of JSON. What is printed by anything else in here goes to standard error.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

Function = Callable[[Any], Any]


class WrongResult(RuntimeError):
    """What came back is not what the function returned: the figures would mean nothing."""


class Contestant(Protocol):
    """Two slots that run functions."""

    version: str

    def map(self, function: Function, items: Sequence[Any], batch: int) -> Sequence[Any]:
        """All results, in the order of the items. `batch`: items in one piece of work, where a person sets that."""
        ...

    def one(self, function: Function, item: Any) -> Any:
        """One call and its result."""
        ...

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds so far by part, such as 'control plane'; empty where nobody asks."""
        ...

    def close(self) -> None:
        """End it, with whatever it started."""
        ...


def serve(start: Callable[[], Contestant]) -> None:
    """Start a contestant, say so, and answer requests until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    functions = importlib.import_module("functions")  # of the project folder, which is the current one
    contestant = start()
    try:
        _answer(answers, {"version": contestant.version})
        for line in sys.stdin:
            request = json.loads(line)
            _answer(answers, _WORK[request.pop("do")](contestant, functions, **request))
    finally:
        contestant.close()


def _answer(answers: Any, body: dict[str, Any]) -> None:
    answers.write(json.dumps(body) + "\n")
    answers.flush()


def _mapped(
    contestant: Contestant, function: Function, items: Sequence[Any], batch: int = 1
) -> tuple[Sequence[Any], dict[str, Any]]:
    """The results of one map, and what it took: seconds, and CPU seconds by part."""
    gc.collect()
    before = contestant.cpu_s()
    began = time.perf_counter()
    results = contestant.map(function, items, batch)
    seconds = time.perf_counter() - began
    return results, {"seconds": seconds, "cpu_s": _since(before, contestant)}


def _since(before: dict[str, float], contestant: Contestant) -> dict[str, float]:
    return {name: now - before.get(name, 0.0) for name, now in contestant.cpu_s().items()}


def _noops(contestant: Contestant, functions: Any, *, count: int, batch: int = 1) -> dict[str, Any]:
    """`count` no-op calls by one map."""
    results, answer = _mapped(contestant, functions.noop, range(count), batch)
    if list(results) != list(range(count)):
        raise WrongResult(f"{len(results)} results of {count} no-op calls are not what went in")
    return answer


def _singles(contestant: Contestant, functions: Any, *, count: int) -> dict[str, Any]:
    """One call after the other, each timed."""
    gc.collect()
    seconds: list[float] = []
    before = contestant.cpu_s()
    for n in range(count):
        began = time.perf_counter()
        result = contestant.one(functions.noop, n)
        seconds.append(time.perf_counter() - began)
        if result != n:
            raise WrongResult(f"a call of {n} returned {result!r}")
    return {"seconds": seconds, "cpu_s": _since(before, contestant)}


def _arrays(contestant: Contestant, functions: Any, *, count: int, seed: int) -> dict[str, Any]:
    """Arrays of 2 MB, none like another, there and back."""
    import numpy as np

    source = np.random.default_rng(seed)
    arrays = [source.random((500, 500)) for _ in range(count)]
    results, answer = _mapped(contestant, functions.plus_one, arrays)
    if len(results) != count or not all(np.array_equal(b, a + 1) for a, b in zip(arrays, results, strict=True)):
        raise WrongResult(f"{len(results)} results of {count} arrays are not the arrays plus one")
    return answer


def _naps(contestant: Contestant, functions: Any, *, lengths: list[float]) -> dict[str, Any]:
    """Calls of uneven lengths by one map."""
    results, answer = _mapped(contestant, functions.nap, lengths)
    if list(results) != lengths:
        raise WrongResult("the naps did not return their lengths")
    return answer


_WORK: dict[str, Callable[..., dict[str, Any]]] = {
    "noops": _noops,
    "singles": _singles,
    "arrays": _arrays,
    "naps": _naps,
}
