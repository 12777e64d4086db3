"""The results of a map, one by one."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from gpulayer.functions.running import Run, gathered
from gpulayer.protocol.calls import OK, ResultRun


def values(run: Run, *, return_exceptions: bool) -> Generator[Any, None, None]:
    """The results of a map as they come.

    Raises what the first failed call raised, unless these are returned; why the map ended without its results.
    """
    __tracebackhide__ = True
    value, streams = run.value, run.spec.stream
    while runs := run.next_runs():
        for each in runs:
            if streams or any(each.codes):
                yield from one_by_one(run, each, return_exceptions)
            else:
                for data in each.data:
                    yield value(data)
    run.check_end()


def one_by_one(run: Run, each: ResultRun, return_exceptions: bool) -> Iterator[Any]:
    """The values of some results; the exception of one that failed, or that is raised. See `values`."""
    for place, (code, data) in enumerate(zip(each.codes, each.data, strict=True)):
        index = each.first + place
        if code == OK:
            yield gathered(run, index) if run.spec.stream else run.value(data)
        elif return_exceptions:
            yield run.error(code, data, index)
        else:
            raise run.error(code, data, index)
