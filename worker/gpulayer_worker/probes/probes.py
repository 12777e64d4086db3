"""Keeps what is known of the frameworks in the interpreter for jobs, and finds out what is not."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from gpulayer.protocol.machines import Device, Framework, Inventory
from gpulayer_worker.probes import cache
from gpulayer_worker.probes.asking import Ask, Asking
from gpulayer_worker.probes.child import LIMIT_S
from gpulayer_worker.probes.outcomes import OUT_OF_MEMORY, Outcome, Results, told
from gpulayer_worker.probes.packages import Packages, look, own, resolved

_LOOK_S = 5.0  # between two looks whether devices came or something was installed
_ASK_AGAIN_S = 60.0  # an interpreter that did not say what it has

T = TypeVar("T")
Tell = Callable[[Framework], None]


class Probes:
    """The probes of one worker. All but `packages` and `names` is called on one event loop.

    A worker that starts says `names()` in its inventory as still being probed, with `known(inventory)` as frameworks;
    then `watch` tells each framework when its probe is through, and again whenever something else holds of it. Whenever
    its inventory changes (a device that comes late, one that is mended), `probing(inventory)` is what is not through.
    """

    def __init__(
        self,
        python: str,
        data: Path | None,
        *,
        limit_s: float = LIMIT_S,
        busy: Callable[[], Collection[str]] = tuple,
        own: bool = False,
    ):
        """For the interpreter `python`; what is found is kept below `data` (None: nowhere).

        `limit_s` is how long each step of a probe may take. `busy` gives the UUIDs of devices with jobs on them:
        these are not computed on, but for `probe_device`. `own`: what this process imports from is what a fresh one of
        its interpreter does, so that at first it answers for that itself.
        """
        self._path = resolved(python)
        self._data = data
        self._limit_s = limit_s
        self._own = own
        self._busy = busy
        self._known = cache.load(data)
        self._asked_at = float("-inf")
        self._inventory: Callable[[], Inventory | None] = lambda: None
        self._told: dict[str, Framework] = {}
        self._wake = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()

    # ---------------------------------------------------------------- what is there

    def packages(self) -> Packages:
        """What the interpreter has installed. Blocks for tens of milliseconds where that is not known yet."""
        packages = self._known.packages
        if packages is not None and packages.current(self._path):
            return packages
        if packages is None or not packages.problem or time.monotonic() - self._asked_at > _ASK_AGAIN_S:
            first = self._asked_at < 0
            packages = self._known.packages = (own(self._path) if self._own and first else None) or look(self._path)
            self._asked_at = time.monotonic()
            cache.save(self._data, self._known)
        return packages

    @property
    def asked(self) -> Packages | None:
        """What the interpreter said when it was asked last; None: it was not yet. Never blocks."""
        return self._known.packages

    def names(self) -> tuple[str, ...]:
        """The frameworks that are installed and of which nothing was told or known yet. Blocks as `packages` does."""
        return tuple(name for name in self.packages().names if name not in self._told)

    def probing(self, inventory: Inventory) -> tuple[str, ...]:
        """As `names`, and those of which more may be told soon, as of a device that came late. Never blocks."""
        packages = self._known.packages
        asks = [self._ask(name, packages, inventory) for name in packages.names] if packages is not None else []
        found = tuple(ask.name for ask in asks if self._pending(ask))
        if found:
            self._wake.set()
        return found

    def _pending(self, ask: Ask) -> bool:
        told, results = self._told.get(ask.name), self._results(ask)
        if told is None or results.unknown(ask.targets):
            return True
        return not set(_told(ask, results).devices) <= set(told.devices)

    def known(self, inventory: Inventory) -> tuple[Framework, ...]:
        """What a start before us found, as far as it still holds and nothing of it is missing.

        It counts as told. Blocks as `packages` does.
        """
        packages = self.packages()
        for name in packages.names:
            ask = self._ask(name, packages, inventory)
            results = self._results(ask)
            if not _due(ask, results, ()):
                self._told[name] = _told(ask, results)
        return tuple(self._told[name] for name in packages.names if name in self._told)

    # ---------------------------------------------------------------- finding out

    async def run(self, inventory: Inventory, tell: Tell) -> None:
        """Probe what is not known or may have changed, one after the other; tells each framework that is through.

        One that was removed is told without a version.
        """
        self._inventory = lambda: inventory
        packages = await self._threaded(self.packages)
        if packages.problem:
            return  # that it does not answer now says nothing of what it has
        for name in [name for name in self._told if name not in packages.names]:
            del self._told[name]
            tell(Framework(name=name))
        asks = [self._ask(name, packages, inventory) for name in packages.names]
        for ask in sorted(asks, key=lambda ask: bool(_due(ask, self._results(ask), self._busy()))):
            async with self._one_at_a_time:
                due = _due(ask, self._results(ask), self._busy())
                if due:
                    await self._probe(ask, due)
            results = self._results(ask)
            if results.unknown(ask.targets):
                continue  # devices with jobs on them: it stays among those that are probed until these end
            framework = _told(ask, results)
            if self._told.get(ask.name) != framework:
                self._told[ask.name] = framework
                tell(framework)

    async def watch(
        self, inventory: Callable[[], Inventory], tell: Tell, asked: Callable[[], None] = lambda: None
    ) -> None:
        """`run` for ever: when something was installed, when what failed is to be tried again, after `again`.

        `asked` is called when the interpreter has another version, or fails, or is back.
        """
        while True:
            self._wake.clear()
            before = _interpreter(self.asked)
            await self.run(inventory(), tell)
            self._inventory = inventory
            if _interpreter(self.asked) != before:
                asked()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wake.wait(), _LOOK_S)

    def again(self, uuid: str) -> None:
        """Forget what was found on a device, so that `watch` (or the next `run`) computes on it again."""
        self._known.results = {name: results.without(uuid) for name, results in self._known.results.items()}
        self._wake.set()

    async def probe_device(self, uuid: str) -> str:
        """Whether a device computes, by the first framework that may use it, else by the driver alone.

        '' where it does, else why it is sick. That there is too little memory, or no way to tell, is no sickness.
        """
        inventory = self._inventory()
        device = next((each for each in inventory.devices if each.uuid == uuid), None) if inventory else None
        if inventory is None or device is None:
            return "it is not there any more"
        packages = await self._threaded(self.packages)
        async with self._one_at_a_time:
            for name in packages.names:
                ask = self._ask(name, packages, inventory)
                if not _may_use(self._results(ask), device):
                    continue
                outcome = (await self._probe(ask, [uuid])).outcomes.get(uuid)
                self._wake.set()  # what holds of the framework may be another now
                if outcome is not None and not (outcome.why and outcome.lasting):
                    return _sickness(outcome.why, name)
            return await self._by_driver(inventory, uuid) if device.kind == "cuda" else ""

    async def _by_driver(self, inventory: Inventory, uuid: str) -> str:
        ask = self._ask("driver", Packages(path=sys.executable), inventory)
        found = await self._asked(Asking(ask), [uuid])
        return _sickness(found[uuid].why, "the CUDA driver")

    async def _probe(self, ask: Ask, targets: Sequence[str]) -> Results:
        asking = Asking(ask)
        found = await self._asked(asking, targets)
        results = self._results(ask).renewed(found, asking.built_for, asked=targets, kinds=_kinds(ask))
        self._known.results[ask.name] = results
        await self._threaded(lambda: cache.save(self._data, self._known))
        return results

    async def _asked(self, asking: Asking, targets: Sequence[str]) -> dict[str, Outcome]:
        """Cancelled, it returns when no process is left."""
        return await self._threaded(lambda: asking.run(targets), end=asking.end)

    async def _threaded(self, function: Callable[[], T], end: Callable[[], None] = lambda: None) -> T:
        """In our own thread, so that those for jobs stay free."""
        with ThreadPoolExecutor(1, thread_name_prefix="probes") as thread:
            future = asyncio.get_running_loop().run_in_executor(thread, function)
            try:
                return await asyncio.shield(future)
            except asyncio.CancelledError:
                end()
                with suppress(Exception):
                    await future
                raise

    def _ask(self, name: str, packages: Packages, inventory: Inventory) -> Ask:
        return Ask(name=name, packages=packages, inventory=inventory, limit_s=self._limit_s)

    def _results(self, ask: Ask) -> Results:
        return _valid(self._known, ask)


def probe_all(python: str, inventory: Inventory, data: Path | None = None) -> tuple[Framework, ...]:
    """Every framework that an interpreter has, probed now (or known from below `data`); blocks for seconds."""
    known = cache.load(data)
    path = resolved(python)
    if known.packages is None or not known.packages.current(path):
        known.packages = look(path)
    found: list[Framework] = []
    for name in known.packages.names:
        ask = Ask(name=name, packages=known.packages, inventory=inventory)
        results = _valid(known, ask)
        due = _due(ask, results, ())
        if due:
            asking = Asking(ask)
            results = results.renewed(asking.run(due), asking.built_for, asked=due, kinds=_kinds(ask))
            known.results[name] = results
        found.append(_told(ask, results))
    cache.save(data, known)
    return tuple(found)


def _valid(known: cache.Known, ask: Ask) -> Results:
    """What is known of a framework as it is now."""
    key = ask.key()
    return known.results.get(ask.name, Results(key=key)).under(key, ask.drivers())


def _due(ask: Ask, results: Results, busy: Collection[str]) -> list[str]:
    """The targets to compute on now."""
    return results.due([target for target in ask.targets if target not in busy], time.time())


def _told(ask: Ask, results: Results) -> Framework:
    devices = [device for device in ask.inventory.devices if not device.sick]
    return told(ask.name, ask.packages.version(ask.name), results, devices)


def _interpreter(packages: Packages | None) -> tuple[str, str]:
    return (packages.python, packages.problem) if packages is not None else ("", "")


def _kinds(ask: Ask) -> dict[str, str]:
    return {device.uuid: device.kind for device in ask.inventory.devices}


def _may_use(results: Results, device: Device) -> bool:
    """Whether a framework's failure says something of the device: it has worked on such ones."""
    return device.kind in results.worked and not results.general


def _sickness(why: str, by: str) -> str:
    return f"{why} ({by})" if why and not why.startswith(OUT_OF_MEMORY) else ""
