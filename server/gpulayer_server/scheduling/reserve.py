"""Which workers one who waits for much gets next: those on which the least has to end before he fits.

Nobody knows how long a job runs: what counts is how many have to end. A session may stay for days: it counts for many.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from gpulayer.protocol.types import Device, Requirements
from gpulayer_server.scheduling import gang, match
from gpulayer_server.scheduling.candidate import Candidate

_SESSION = 1000  # jobs that count as much as one session
_PRICED, _PRICED_EACH = 32, 8  # so many workers are looked at closely, and so many more for each machine that is needed


class Held(Protocol):
    """What an attempt or a session holds of a worker."""

    @property
    def devices(self) -> tuple[Device, ...]: ...

    @property
    def ram_bytes(self) -> int: ...

    @property
    def cpu_cores(self) -> float: ...

    @property
    def session(self) -> str: ...


class Holding(Candidate, Protocol):
    """A worker, with who holds what of it."""

    @property
    def claims(self) -> Mapping[str, Held]: ...


Each = TypeVar("Each", bound=Holding)


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept(Generic[Each]):
    """A worker of a reservation."""

    worker: Each
    uuids: frozenset[str]  # of the devices that are kept, free or not
    price: int  # how many have to end there


def price(requirements: Requirements, worker: Each) -> Kept[Each]:
    """What has to end on a worker that could take it."""
    ends: dict[str, int] = {}  # holders that have to end, and what each counts for
    claims = worker.claims

    def need(holder: str) -> None:
        ends[holder] = _SESSION if claims[holder].session else 1

    uuids = _devices(requirements, worker, need)
    for wanted, left, of in (
        (requirements.ram_bytes or 0, worker.ram_left_bytes, _ram),
        (requirements.cpu_cores or 0.0, worker.cpu_left, _cpu),
    ):
        left += sum(of(claims[holder]) for holder in ends)
        for holder in sorted(claims, key=lambda holder: (bool(claims[holder].session), -of(claims[holder]))):
            if left >= wanted:
                break
            if holder not in ends:
                need(holder)
                left += of(claims[holder])
    if worker.slots_free < 1 and not ends and claims:
        need(min(claims, key=lambda holder: bool(claims[holder].session)))
    return Kept(worker=worker, uuids=uuids, price=sum(ends.values()))


def _devices(requirements: Requirements, worker: Holding, need: Callable[[str], None]) -> frozenset[str]:
    """The devices that are soonest free, by how many hold each."""
    if requirements.device_kind is None:
        return frozenset()
    holders: dict[str, list[str]] = {}
    for holder, claim in worker.claims.items():
        for device in claim.devices:
            holders.setdefault(device.uuid, []).append(holder)

    def cost(device: Device) -> tuple[int, int]:
        on = holders.get(device.uuid, [])
        return (sum(_SESSION if worker.claims[holder].session else 1 for holder in on), device.index)

    usable = [device for device in worker.inventory.devices if match.usable(requirements, device, worker.inventory)]
    chosen = sorted(usable, key=cost)[: requirements.device_count]
    for device in chosen:
        for holder in holders.get(device.uuid, []):
            need(holder)
    return frozenset([device.uuid for device in chosen])


def _ram(claim: Held) -> float:
    return claim.ram_bytes


def _cpu(claim: Held) -> float:
    return claim.cpu_cores


def soonest(requirements: Requirements, able: Iterable[Each]) -> list[Kept[Each]]:
    """The workers that it gets soonest, as many as it takes; none where there are not enough."""
    every, count = list(able), requirements.device_count

    def at_least(worker: Each) -> tuple[int, bool]:
        return (max(0, count - len(worker.devices_free)), worker.slots_free < 1)

    near = heapq.nsmallest(_PRICED + _PRICED_EACH * requirements.nodes, every, key=at_least)
    return _cheapest(requirements, near) or (_cheapest(requirements, every) if len(near) < len(every) else [])


def _cheapest(requirements: Requirements, able: Sequence[Each]) -> list[Kept[Each]]:
    kept = sorted([price(requirements, worker) for worker in able], key=_by_price)
    if requirements.nodes == 1:
        return kept[:1]
    by_id = {each.worker.id: each for each in kept}
    for at, each in enumerate(kept):
        last = at + 1 == len(kept) or kept[at + 1].price > each.price
        if at + 1 < requirements.nodes or not last:
            continue
        cheapest = [each.worker for each in kept[: at + 1]]
        chosen: Sequence[Candidate] | None = gang.choose_nodes(requirements, cheapest, lambda _: True)
        if chosen is not None:
            return [by_id[worker.id] for worker in chosen]
    return []


def _by_price(kept: Kept[Each]) -> tuple[int, str]:
    return (kept.price, kept.worker.name)
