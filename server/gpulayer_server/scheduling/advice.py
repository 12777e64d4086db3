"""The nearest miss: of all machines that can't take a job, the one with the least to mend, and the step for that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from gpulayer.protocol.types import Reason, Requirements

#: How much it takes to mend one constraint: a label is a word, a package an install; a card has to be bought.
_COST: Mapping[str, float] = {
    "label": 1,
    "slots": 1,
    "framework": 2,
    "framework_version": 2,
    "framework_device": 3,
    "python": 3,
    "driver": 4,
    "device_count": 20,
    "ram": 20,
    "cpu": 20,
    "vram": 30,
    "vram_share": 30,
    "capability": 30,
    "device_name": 30,
    "device_kind": 50,
    "os": 60,
    "arch": 60,
}
_UNKNOWN = 100.0
_MENDED = 5.0  # something that is there and broken: a sick device, a driver
_UNSEEN = 45.0  # the same, where of devices that nobody could look at more is asked than that one is there
_MUCH = 20.0  # from here on it is another machine that helps


class Named(Protocol):
    """A worker, of which only the name matters here: reasons may be older than what it is now."""

    @property
    def name(self) -> str: ...


def nearest(requirements: Requirements, workers: Sequence[Named], reasons: Sequence[Reason]) -> str:
    """The step that would make a job fit, in one line; '' where none is known, or where waiting is all there is to do.

    Args:
        requirements: of the job.
        workers: all that are known.
        reasons: what `match.explain` says of them.
    """
    of_fleet = [reason for reason in reasons if not reason.worker]
    unknown = next((reason for reason in of_fleet if reason.code == "worker_unknown"), None)
    if unknown is not None:
        return unknown.remedy
    names = [worker.name for worker in workers if requirements.worker in (None, worker.name)]
    told = {name: list[Reason]() for name in names}
    for reason in reasons:
        if reason.worker in told:
            told[reason.worker].append(reason)
    lasting = {name: [reason for reason in mine if not reason.temporary] for name, mine in told.items()}
    if any(not mine for mine in lasting.values()):
        return _to_take_now(told)
    too_few = next((reason for reason in of_fleet if reason.code == "nodes" and not reason.temporary), None)
    unable = {name: mine for name, mine in lasting.items() if any(each.code != "nodes" for each in mine)}
    if too_few is not None:
        return _of_machines(too_few, unable, picky=_picky(requirements)) or too_few.remedy
    if not unable:
        return next((reason.remedy for reason in of_fleet if reason.remedy), "")
    picky = _picky(requirements)
    steps = [(_cost(mine, picky=picky), name, _step(mine)) for name, mine in unable.items()]
    cost, _, remedy = min((each for each in steps if each[2]), default=(0.0, "", ""))
    kinds = {reason.code for mine in unable.values() for reason in mine}
    if kinds == {"device_kind"} and cost >= _MUCH:
        return f"no worker has a {requirements.device_kind} device; {remedy}"
    return remedy


def _to_take_now(told: Mapping[str, Sequence[Reason]]) -> str:
    """Of machines that could take it, if only strangers made room: the step for the one where they hold least."""
    if not all(told.values()):
        return ""
    strangers = [mine for mine in told.values() if mine and all(reason.code == "foreign" for reason in mine)]
    return min(map(_short_step, strangers), default=(0.0, ""))[1]


def _short_step(reasons: Sequence[Reason]) -> tuple[float, str]:
    first = min(reasons, key=_lacking)
    return _lacking(first), first.remedy


def _lacking(reason: Reason) -> float:
    wanted, found = reason.wanted, reason.found
    return float(wanted) - float(found) if isinstance(wanted, int | float) and isinstance(found, int | float) else 0.0


def _of_machines(too_few: Reason, unable: Mapping[str, Sequence[Reason]], *, picky: bool) -> str:
    """What would let as many more machines take their part as are lacking; '' where that takes other machines."""
    lacking = int(_lacking(too_few))
    if lacking < 1:  # there are enough of them, too far apart
        return ""
    easy = sorted((_cost(mine, picky=picky), name) for name, mine in unable.items())[:lacking]
    if len(easy) < lacking or any(cost >= _MUCH for cost, _ in easy):
        return ""
    return "; ".join(_step(unable[name]) for _, name in easy)


def _step(reasons: Sequence[Reason]) -> str:
    return "; ".join(dict.fromkeys(reason.remedy for reason in reasons if reason.remedy))


def _picky(requirements: Requirements) -> bool:
    """Whether more is asked of devices than that there is one: of those that could not be looked at nobody knows it."""
    asked = requirements
    memory = asked.min_vram_bytes or asked.vram_share_bytes
    return asked.device_count > 1 or bool(memory or asked.device_names or asked.min_capability or asked.min_driver)


def _cost(reasons: Sequence[Reason], *, picky: bool) -> float:
    return sum(_cost_of(reason, picky=picky) for reason in reasons if reason.code != "nodes")


def _cost_of(reason: Reason, *, picky: bool) -> float:
    """What one constraint costs, and a little more the further what is there is from what is asked."""
    cost = _COST.get(reason.code, _UNKNOWN)
    if reason.remedy.startswith("mend "):
        cost = _UNSEEN if picky and reason.code == "device_kind" else _MENDED
    wanted, found = reason.wanted, reason.found
    if isinstance(wanted, int | float) and isinstance(found, int | float) and wanted > 0:
        cost += min(1.0, max(0.0, 1 - found / wanted))
    return cost
