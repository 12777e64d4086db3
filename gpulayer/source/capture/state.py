"""What a capture has found so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpulayer.source.capture.finding import is_cell, shown_file
from gpulayer.source.capture.records import Piece

__all__ = ["Data", "Item", "State"]

_KEPT = ("bound", "items", "imports", "imported", "data", "folders", "missing", "stored", "strings", "slots", "cells")


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """A value that travels by value."""

    size_bytes: int


@dataclass(kw_only=True, slots=True, eq=False)
class Item:
    """Something that a piece makes."""

    slot: str
    value: Any  # kept, so that its id stays its own
    piece: Piece | None = None  # None while what it needs is looked for
    names: list[str] = field(default_factory=list)  # of the module, that it is bound to
    first: list[str] = field(default_factory=list)  # slots that must be there before
    later: list[str] = field(default_factory=list)  # slots of what it calls

    def bind(self, name: str) -> None:
        """Bind it to a name of the module, too."""
        if name not in self.names:
            self.names.append(name)


@dataclass(kw_only=True, slots=True)
class State:
    """Owned by the collector; read when it is done."""

    bound: dict[str, Any] = field(default_factory=dict)  # the module's names and what they stand for
    items: dict[int, Item] = field(default_factory=dict)  # by the id of their value
    imports: dict[str, None] = field(default_factory=dict)  # statements
    imported: set[str] = field(default_factory=set)  # names that they bind
    data: dict[str, Any] = field(default_factory=dict)
    data_bytes: int = 0
    folders: dict[str, str] = field(default_factory=dict)  # of local modules, and the module that needs each
    missing: dict[str, tuple[str, Mapping[str, Any]]] = field(default_factory=dict)  # names, and who uses them
    stored: set[str] = field(default_factory=set)  # names that functions bind by `global`
    strings: set[str] = field(default_factory=set)
    slots: set[str] = field(default_factory=set)
    cells: dict[str, str] = field(default_factory=dict)  # what pieces call a cell, and what people do
    needs_file: bool = False  # `__file__` is used

    def new_item(self, value: Any, name: str) -> Item:
        """An item for a value that has none yet, in a slot of its own."""
        slot, number = name, 1
        while slot in self.slots:
            number += 1
            slot = f"{name}#{number}"
        self.slots.add(slot)
        item = Item(slot=slot, value=value)
        self.items[id(value)] = item
        return item

    def file_of(self, slot: str, filename: str) -> str:
        """What a piece calls the file that it is from: what stays the same when an unchanged cell is run again."""
        if not is_cell(filename):
            return shown_file(filename)
        name = f"cell of {slot}"
        self.cells[name] = shown_file(filename)
        return name

    def mark(self) -> tuple[Any, ...]:
        """All as it is now, for `back_to`."""
        lists = [(item, len(item.names), len(item.first), len(item.later)) for item in self.items.values()]
        return {name: getattr(self, name).copy() for name in _KEPT}, lists, self.data_bytes, self.needs_file

    def back_to(self, mark: tuple[Any, ...]) -> None:
        """Forget what was found since."""
        kept, lists, self.data_bytes, self.needs_file = mark
        for name, value in kept.items():
            setattr(self, name, value)
        for item, names, first, later in lists:
            del item.names[names:], item.first[first:], item.later[later:]
