"""The order of pieces: what a definition evaluates is there before it, with all that it calls."""

from __future__ import annotations

from collections.abc import Iterable

from gpulayer.source.capture.records import CaptureError
from gpulayer.source.capture.state import Item

__all__ = ["in_order"]


def in_order(items: Iterable[Item]) -> list[Item]:
    """The items, each behind those that it needs when it is executed. Raises `CaptureError` when there is no order."""
    by_slot = {item.slot: item for item in items}
    done: dict[str, Item] = {}
    opened: list[str] = []

    def place(slot: str) -> None:
        if slot in done:
            return
        if slot in opened:
            others = " and ".join(opened[opened.index(slot) :])
            raise CaptureError(f"{others} need each other when they are defined: define them outside of functions")
        opened.append(slot)
        for needed in by_slot[slot].first:
            place(needed)
        called = [each for needed in by_slot[slot].first for each in _reached(needed, by_slot)]
        for each in called:  # what is evaluated may call these at once, unless they wait for this very one
            if each not in opened and not _waits_for(each, opened, by_slot):
                place(each)
        opened.pop()
        done[slot] = by_slot[slot]

    for slot in by_slot:
        place(slot)
    return list(done.values())


def _reached(slot: str, items: dict[str, Item]) -> list[str]:
    """What an item needs and calls, and what that calls, and so on."""
    found: dict[str, None] = {}
    pending = [slot]
    while pending:
        for each in (*items[pending[-1]].first, *items[pending.pop()].later):
            if each not in found:
                found[each] = None
                pending.append(each)
    return list(found)


def _waits_for(slot: str, opened: list[str], items: dict[str, Item]) -> bool:
    """Whether an item can only come behind one of those that are being placed."""
    pending, seen = [slot], {slot}
    while pending:
        for each in items[pending.pop()].first:
            if each in opened:
                return True
            if each not in seen:
                seen.add(each)
                pending.append(each)
    return False
