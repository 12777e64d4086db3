"""Handles to calls that go on: `Call` of one, `Map` of many, `Items` of a generator."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any, Generic, TypeVar

from gpulayer.client.errors import ControlPlaneError
from gpulayer.functions.frames import SHORT, shortened, shortly
from gpulayer.functions.hub import hub
from gpulayer.functions.options import CallRefused
from gpulayer.functions.results import values
from gpulayer.functions.running import Run
from gpulayer.protocol.calls import MapSpec, MapView

R = TypeVar("R")

_ANSWER_S = 60.0
_LAST_WORD_S = 2.0


class Call(Generic[R]):
    """One call on its way, or over. Another process finds it by its id: `gl.call(call.id)`."""

    def __init__(self, run: Run):
        self._run = run
        self._finished = False
        self._made: Any = None
        self._failed: BaseException | None = None

    @property
    def id(self) -> str:
        """'k3f9.17'. Waits until the control plane has it. Raises why it has not."""
        return known_id(self._run)

    @shortly
    def result(self, timeout: float | None = None) -> R:
        """What it returned; of a generator the list of its items. What it printed appears meanwhile.

        Args:
            timeout: seconds; None: as long as it takes.

        Raises:
            RemoteError: what the function raised, as an exception of the same name, with the remote traceback.
            TimeoutError: it is not over by then; it goes on. JobCancelled, JobRejected, JobFailed: it never ran.
            KeyboardInterrupt: Ctrl-C, once it is cancelled.
        """
        if not self._finished:
            try:
                self._run.wait(self._over, timeout)
            finally:
                self._run.hub.connection.leave()
        if not self._over():
            raise TimeoutError(f"call {self._run.subscription.id} is not over after {timeout:g} s; it goes on")
        return self._settled()

    def done(self) -> bool:
        """Whether it is over, well or not."""
        self._run.poll()
        return self._over()

    def cancel(self) -> None:
        """End it: it is interrupted where it runs. Returns at once."""
        self._run.cancel()

    def status(self) -> MapView:
        """How it is now."""
        return status_of(self.id)

    def logs(self) -> str:
        """What it printed so far, as text; it appears here too, if it did not yet."""
        run = self._run
        run.wait(lambda: run.subscription.view is not None)
        run.poll()
        return run.show.written

    def _over(self) -> bool:
        return self._finished or bool(self._run.has_runs) or self._run.ended

    def _settled(self) -> R:
        """The result, or what it raised, again each time."""
        run = self._run
        if not self._finished:
            self._finished = True
            try:
                self._made = run.only_value()
            except Exception as error:  # noqa: BLE001 it is raised below, and each time that somebody asks
                self._failed = error
            finally:
                run.finish()
        if self._failed is not None:
            raise self._failed
        return self._made

    def __await__(self) -> Generator[Any, None, R]:
        from gpulayer.functions.aio import awaited  # not at import: asyncio takes its time

        return awaited(self._run, self._over, self._settled).__await__()

    def __iter__(self) -> Iterator[Any]:
        """The items of a generator, as they come. Raises as `result`."""
        return items(self._run)

    def __repr__(self) -> str:
        return f"<gpulayer call {self._run.subscription.id or 'on its way'}>"


def items(run: Run) -> Generator[Any, None, None]:
    """What a generator's call yields, as it comes. Raises as `Call.result`."""
    number = 0
    while True:
        found = run.items.get(0, {})
        while number in found:
            item = found.pop(number)
            number += 1
            yield run.value(item)
        if run.ended or run.has_runs:
            break
        run.wait(lambda: run.has_runs or bool(run.items.get(0)))
    run.only_value()


class Items(Generic[R]):
    """What a generator yields there, as it comes here: an iterator. Left before its end, the call is cancelled."""

    def __init__(self, run: Run):
        self._guard = _Guard(run, True)
        self._items = _guarded_items(self._guard)

    def __iter__(self) -> Iterator[R]:
        return self._items

    def __next__(self) -> R:
        return next(self._items)

    @property
    def id(self) -> str:
        """The call's id. Waits until the control plane has it."""
        return known_id(self._guard.run)

    def close(self) -> None:
        """Take nothing more: it is cancelled."""
        self._items.close()
        self._guard.leave()


def _guarded_items(guard: _Guard) -> Generator[Any, None, None]:
    try:
        yield from items(guard.run)
    except SHORT as error:
        raise shortened(error) from error.__cause__
    finally:
        guard.leave()


class Map(Generic[R]):
    """The results of many calls, as an iterator: each is there once it came, in the order of the arguments.

    Left before its end, by `close`, `break` or an error, the map is cancelled. Arguments are taken as they are needed,
    in the thread that iterates. Another process finds it by its id: `gl.call(results.id)`.
    """

    def __init__(self, run: Run | None, *, return_exceptions: bool = False, owned: bool = True):
        """`run` None: a map of nothing."""
        self._run = run
        self._owned = owned
        self._results: Generator[R, None, None] | None = None
        self._guard: _Guard | None = None
        if run is not None:
            self._guard = _Guard(run, owned)
            self._results = guarded(self._guard, return_exceptions)

    def __iter__(self) -> Iterator[R]:
        return self._results if self._results is not None else iter(())

    def __next__(self) -> R:
        if self._results is None:
            raise StopIteration
        return next(self._results)

    def __len__(self) -> int:
        """Of all of its calls, where that is known."""
        total = self.total
        if total is None:
            raise TypeError("how many calls this map has is not known yet")
        return total

    @property
    def total(self) -> int | None:
        """How many calls it has; None while that is not known."""
        if self._run is None:
            return 0
        view = self._run.subscription.view
        return self._run.spec.total if self._run.spec.total is not None or view is None else view.total

    @property
    def id(self) -> str:
        """'k3f9.17'. Waits until the control plane has it. Raises why it has not."""
        return known_id(self._run) if self._run is not None else ""

    @property
    def progress(self) -> MapView | None:
        """How far it is, as far as it is known here; None before the control plane's first word."""
        if self._run is None:
            return None
        if self._guard is not None and not self._guard.finished:
            self._run.poll()
        return self._run.subscription.view

    def detach(self) -> str:
        """Send all arguments that are left; from then on it goes on without this process. Its id."""
        if self._run is None:
            return ""
        run = self._run
        run.send_all()
        if self._guard is not None:
            self._guard.owned = run.owned = False
        return known_id(run)

    def status(self) -> MapView:
        """How it is now."""
        return status_of(self.id)

    def cancel(self) -> None:
        """End it: what waits is dropped, what runs is interrupted. Returns at once; iterating raises `JobCancelled`."""
        if self._run is not None:
            self._run.cancel()

    def close(self) -> None:
        """Take no more results; the map is cancelled, unless it is over or `detach`ed."""
        if self._results is not None:
            self._results.close()
        if self._guard is not None:
            self._guard.leave()

    def __enter__(self) -> Map[R]:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        run = self._run
        return (
            f"<gpulayer map {run.subscription.id or 'on its way'}>" if run is not None else "<gpulayer map of nothing>"
        )


class _Guard:
    """Cancels a map once nobody can take its results any more: neither its handle nor its iterator is there."""

    def __init__(self, run: Run, owned: bool):
        self.run = run
        self.owned = owned
        self.finished = False
        if owned:
            run.hub.leaving.add(self)

    def leave(self) -> None:
        """Nobody takes any more."""
        if not self.finished:
            self.finished = True
            self.run.leave() if self.owned else self.run.finish()

    def at_exit(self) -> None:
        """This process ends: what nobody else reads is cancelled, once the control plane has it."""
        if self.owned and not self.finished and not self.run.ended:
            self.finished = True
            self.run.cancel()
            self.run.wait(lambda: bool(self.run.subscription.id), _LAST_WORD_S)

    def __del__(self) -> None:
        if not self.finished and self.owned and not self.run.ended:
            self.run.hub.connection.abandon_map(self.run.subscription)


def guarded(guard: _Guard, return_exceptions: bool) -> Generator[Any, None, None]:
    """The results; the guard lives as long as the handle or this does."""
    __tracebackhide__ = True
    try:
        yield from values(guard.run, return_exceptions=return_exceptions)
    except SHORT as error:
        raise shortened(error) from error.__cause__
    finally:
        guard.leave()


def known_id(run: Run) -> str:
    """The id of a map, once the control plane has it. Raises why it has not."""
    run.wait(lambda: bool(run.subscription.id), _ANSWER_S)
    if not run.subscription.id:
        away = run.hub.connection.away or "no word from it"
        raise ControlPlaneError(f"the control plane did not answer within {_ANSWER_S:g} s: {away}")
    run.hub.connection.leave()
    return run.subscription.id


def status_of(map_id: str) -> MapView:
    """A map as the control plane has it. Raises `RequestRefused`, `ControlPlaneError`."""
    from gpulayer.client import asks

    return hub().client.ask(asks.map_view(map_id))


def call(call_id: str) -> Call[Any] | Map[Any]:
    """A call, or a map, by its id; its results can be read, again if they were before.

    Args:
        call_id: 'k3f9.17', as `Call.id` and `Map.id` say it.

    Returns:
        A `Call` where it is one call, else a `Map`, which is not cancelled when it is left.

    Raises:
        CallRefused: that is no id. RequestRefused: there is none of it. ControlPlaneError: no control plane answers.
    """
    if not isinstance(call_id, str) or not call_id.partition(".")[2].isdecimal():
        raise CallRefused(
            f"{call_id!r} is no call's id, which is like 'k3f9.17': `gpulayer job show JOB` lists a job's"
        )
    view = status_of(call_id)
    returned = view.returns_exceptions
    spec = MapSpec(
        total=view.total, single=view.single, stream=view.streams, return_exceptions=returned, name=view.name
    )
    run = Run(hub(), spec, name=view.name or call_id, map_id=view.id)
    return Call(run) if view.single else Map(run, owned=False, return_exceptions=returned)
