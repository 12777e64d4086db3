"""What a function of a session needs, followed through its helpers: imports, functions, classes, data."""

from __future__ import annotations

import builtins
import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

from gpulayer.protocol.values import ValueRefused, encode
from gpulayer.source.capture import editing, modules, refusals
from gpulayer.source.capture.analysis import Names, is_builtin
from gpulayer.source.capture.importing import Imported, find_import, submodules
from gpulayer.source.capture.items import Parts, class_parts, function_parts, readable
from gpulayer.source.capture.rebuilding import Rebuilt, holder, rebuilt
from gpulayer.source.capture.records import CaptureError, Piece
from gpulayer.source.capture.state import Data, Item, State
from gpulayer.source.capture.unwrapping import chain, lost_there, plain

__all__ = ["Collector"]

_MISSING = object()
_OF_THE_CODEC = (list, tuple, dict, set, frozenset, str, bytes, bytearray, int, float, complex)
_MOST_TEXTS = 100  # that are looked at for names of files
_LIBRARIES = ("numpy", "torch", "pandas", "pyarrow")


class Collector:
    """One capture. `add` the function or class, then read `state`."""

    def __init__(self, data_limit_bytes: int) -> None:
        self.state = State()
        self._limit_bytes = data_limit_bytes
        self.session: Mapping[str, Any] = {}  # the notebook's or script's namespace
        self._entry = ""

    def add(self, value: Any) -> Item:
        """The function or class that was asked for, and all that it needs. Raises `CaptureError`."""
        self._entry = readable(chain(value)[-1])
        item = self._item(value, {})
        for name, (user, namespace) in self.state.missing.items():
            if name not in self.state.stored:
                raise refusals.missing(user, name, namespace)
        return item

    # ------------------------------------------------------------------------------------------- functions and classes

    def _item(self, value: Any, namespace: Mapping[str, Any]) -> Item:
        """The item of a function or class of the session."""
        known = self.state.items.get(id(value))
        if known is not None:
            return known
        parts = class_parts(value, namespace) if isinstance(value, type) else function_parts(value)
        item = self.state.new_item(value, parts.name)
        if not self.session and parts.namespace.get("__name__") in modules.SESSIONS:
            self.session = parts.namespace
        user = parts.name if parts.name == self._entry else f"{parts.name} (needed by {self._entry})"
        given = self._defaults(parts, item, user)
        closure = tuple(
            (name, self._refer(held, name, f"{item.slot}[{name}]", parts.namespace, item, user))
            for name, held in parts.cells.items()
        )
        text = parts.text([(expression, name) for expression, name, _ in given])
        names = parts.names(text)
        all_there = self._names(names, parts, item, user)
        item.piece = Piece(
            filename=self.state.file_of(item.slot, parts.definition.filename),
            first_line=text.first_line,
            text=text.text,
            slot=item.slot,
            defines=text.defines,
            closure=closure or None,
            given=tuple((name, reference) for _, name, reference in given),
            attributes=tuple(self._attributes(parts, item)),
            future=parts.future if all_there else ("annotations",),
        )
        return item

    def _defaults(self, parts: Parts, item: Item, user: str) -> list[tuple[Any, str, str]]:
        """Defaults have the value that they had at the definition: expressions, names that stand for them, references.

        Those that can't travel keep their expressions, which are evaluated anew.
        """
        given: list[tuple[Any, str, str]] = []
        for expression, argument, value in parts.defaults:
            key = f"{item.slot}({argument})"
            reference = self._attempt(
                lambda v=value, a=argument, k=key: self._refer(v, a, k, parts.namespace, item, user)
            )
            if reference is not None:
                given.append((expression, f"{editing.DEFAULT}{len(given)}", reference))
        return given

    def _attributes(self, parts: Parts, item: Item) -> list[tuple[str, str]]:
        """A class has what its attributes were set to since; what is no data stays as its source says."""
        found: list[tuple[str, str]] = []
        for name, value in parts.attributes.items():
            key = f"{item.slot}.{name}"
            if self._attempt(lambda v=value, k=key: self._keep(k, k, v, "")) is not None:
                found.append((name, f"data:{key}"))
        return found

    # ----------------------------------------------------------------------------------------------------------- names

    def _names(self, names: Names, parts: Parts, item: Item, user: str) -> bool:
        """Find what a text needs; whether that includes what its annotations need."""
        state = self.state
        state.stored |= names.stored
        state.strings |= names.strings
        for module in sorted(names.imports):
            self._note_import(module, user)
        for name in sorted(names.evaluated):
            item.first += self._bind(name, parts, user)
        for name in sorted(names.called):
            item.later += self._bind(name, parts, user)
        all_there = True
        for name in sorted(names.soft):
            slots = self._attempt(lambda n=name: self._bind(n, parts, user, soft=True))
            all_there = all_there and slots is not None
            item.first += slots or []
        for root, steps in sorted(names.chains):
            self._refuse_lost(root, steps.partition(".")[0], names, parts, user)
            module = state.bound.get(root)
            if isinstance(module, ModuleType):
                state.imports.update(dict.fromkeys(submodules(root, module, steps)))
        return all_there

    @staticmethod
    def _refuse_lost(root: str, attribute: str, names: Names, parts: Parts, user: str) -> None:
        value = parts.namespace.get(root)
        if lost_there(value, attribute) and root in names.evaluated | names.called:
            raise refusals.remote_inside(user, root, attribute, is_class=isinstance(plain(value), type))

    def _bind(self, name: str, parts: Parts, user: str, *, soft: bool = False) -> list[str]:
        """Bind a name of the module over there to what it means here; the slot of what has to be made for it."""
        value = parts.namespace.get(name, _MISSING)
        if value is _MISSING or _is_shells(name, value):
            if is_builtin(name):
                return []
            value = getattr(builtins, name, _MISSING)
        if value is _MISSING:
            if soft:
                raise refusals.missing(user, name, parts.namespace)
            self.state.missing.setdefault(name, (user, parts.namespace))
            return []
        if name == "__file__":
            self.state.needs_file = True
            return []
        value = plain(value)
        if name in self.state.bound and not _alike(self.state.bound[name], value):
            raise CaptureError(
                f"{user} and what it needs use two different things that are both called {name!r}, "
                "of two modules: rename one of them"
            )
        self.state.bound[name] = value
        way = self._way(value, name, parts.namespace, user)
        if isinstance(way, Item):
            way.bind(name)
            return [way.slot]
        if isinstance(way, Imported):
            self._note_folder(way)
            self.state.imports[way.statement(name)] = None
            self.state.imported.add(name)
        else:
            self._keep(name, name, value, user, way)
        return []

    def _refer(self, value: Any, name: str, key: str, namespace: Mapping[str, Any], item: Item, user: str) -> str:
        """A reference to a value that has no name in the module: to a slot, or to the data under `key`."""
        value = plain(value)
        way = self._way(value, name, namespace, user)
        if isinstance(way, Data):
            return f"data:{self._keep(key, name, value, user, way)}"
        if isinstance(way, Imported):
            self._note_folder(way)
            way = self._imported_item(value, way)
        item.first.append(way.slot)
        return f"slot:{way.slot}"

    def _imported_item(self, value: Any, way: Imported) -> Item:
        known = self.state.items.get(id(value))
        if known is not None:
            return known
        item = self.state.new_item(value, way.name)
        item.piece = Piece(
            filename=f"<imports of {self._entry}>",
            first_line=1,
            text=way.statement(editing.OBJECT),
            slot=item.slot,
            defines=editing.OBJECT,
        )
        return item

    # ------------------------------------------------------------------------------------------------ ways of one value

    def _way(self, value: Any, name: str, namespace: Mapping[str, Any], user: str) -> Item | Imported | Data:
        """How a value travels. Raises `CaptureError` if it can't."""
        known = self.state.items.get(id(value))
        if known is not None:
            return known
        found = find_import(value, name)
        if found is not None:
            return found
        if isinstance(value, ModuleType):
            raise refusals.refused(user, name, value)
        recipe = rebuilt(value) or (holder(value) if _holds_more(value) else None)
        if recipe is not None:
            return self._rebuilt_item(value, name, recipe, namespace, user)
        if isinstance(value, type) or isinstance(chain(value)[-1], FunctionType):
            return self._item(value, namespace)
        return self._data_or_elsewhere(value, name, user)

    def _data_or_elsewhere(self, value: Any, name: str, user: str) -> Imported | Data:
        try:
            size = sum(memoryview(part).nbytes for part in encode(value, name))
        except ValueRefused as refused:
            place = find_import(value, name, anything=True)
            if place is not None:
                return place
            raise self._refused(value, name, user, refused) from None
        if self.state.data_bytes + size > self._limit_bytes:
            place = find_import(value, name, anything=True)
            if place is not None:
                return place
        return Data(size_bytes=size)

    def _refused(self, value: Any, name: str, user: str, refused: ValueRefused) -> CaptureError:
        family = str(type(value).__module__).partition(".")[0]
        if refused.path == name and not isinstance(value, _OF_THE_CODEC) and family not in _LIBRARIES:
            return refusals.refused(user, name, value)
        text, _, advice = str(refused).rpartition(": ")
        if advice.startswith("define the "):  # a function or class: it may travel, but not in a list or a dict
            advice = f"make {name!r} inside the function, or name the functions and classes there one by one"
        return CaptureError(f"{user} uses {name!r}, which can't travel: {text}: {advice}")

    def _rebuilt_item(self, value: Any, name: str, recipe: Rebuilt, namespace: Mapping[str, Any], user: str) -> Item:
        item = self.state.new_item(value, name)
        given: list[tuple[str, str]] = []
        for index, (inner, needed) in enumerate(recipe.given):
            given.append((inner, self._refer(needed, name, f"{item.slot}<{index}>", namespace, item, user)))
        if isinstance(value, os.PathLike):
            self.state.strings.add(os.fspath(value))
        item.piece = Piece(
            filename=f"<values of {self._entry}>",
            first_line=1,
            text=f"{editing.OBJECT} = {recipe.expression}",
            slot=item.slot,
            defines=editing.OBJECT,
            given=tuple(given),
        )
        return item

    # ------------------------------------------------------------------------------------------------------------ notes

    def _keep(self, key: str, name: str, value: Any, user: str, data: Data | None = None) -> str:
        """Take a value along. Raises `CaptureError` when it is no data or too much."""
        if key in self.state.data:
            return key
        if data is None:
            try:
                data = Data(size_bytes=sum(memoryview(part).nbytes for part in encode(value, name)))
            except ValueRefused as refused:
                raise CaptureError(str(refused)) from None
        total = self.state.data_bytes + data.size_bytes
        if total > self._limit_bytes:
            raise refusals.too_large(user, name, total, self.state.data, self._limit_bytes)
        self.state.data_bytes = total
        self.state.strings.update(itertools.islice(_texts(value), _MOST_TEXTS))
        self.state.data[key] = value
        return key

    def _note_folder(self, way: Imported) -> None:
        if way.folder is not None:
            self.state.folders.setdefault(way.folder, way.module)

    def _note_import(self, module: str, user: str) -> None:
        if module.startswith("."):
            raise CaptureError(
                f"{user} imports from {module!r}, relative to its own module: give the module's full name there"
            )
        place = modules.place_of_name(module)
        if place is not None and place.folder is not None:
            self.state.folders.setdefault(place.folder, module.partition(".")[0])

    def _attempt(self, way: Callable[[], Any]) -> Any:
        """What `way` returns; None, and all as it was before, if something can't travel."""
        before = self.state.mark()
        try:
            return way()
        except CaptureError:
            self.state.back_to(before)
            return None


def _texts(value: Any) -> Iterator[str]:
    """Texts in plain data that may be names of files."""
    if isinstance(value, str):
        if 0 < len(value) <= 255 and value.isprintable():
            yield value
    elif isinstance(value, (list, tuple)):
        for each in itertools.islice(value, _MOST_TEXTS):
            yield from _texts(each)
    elif isinstance(value, dict):
        for each in itertools.islice(value.values(), _MOST_TEXTS):
            yield from _texts(each)


def _alike(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and isinstance(one, (int, float, str, bytes)) and one == other)


def _is_shells(name: str, value: Any) -> bool:
    """Whether it is IPython's own wrapper of a builtin, in every notebook: `open`."""
    inner = chain(value)[-1]
    if inner is value or inner is not getattr(builtins, name, _MISSING):
        return False
    return str(getattr(value, "__globals__", {}).get("__name__", "")).startswith("IPython.")


def _holds_more(value: Any) -> bool:
    """Whether a tuple holds more than plain data."""
    if type(value) is not tuple:
        return isinstance(value, tuple)
    try:
        encode(value)
    except ValueRefused:
        return True
    return False
