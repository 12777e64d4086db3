"""What a capture is made of."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from gpulayer.source.errors import SourceError

__all__ = ["CaptureError", "Captured", "Piece"]


class CaptureError(SourceError):
    """A function or class that can't travel. Its text is one line: what, where, what to do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """Source that is executed as one: imports, or one function or class. Its line numbers are those of the original.

    References (in `closure`, `given`, `attributes`) are 'slot:f', what an earlier piece made, or 'data:f[k]', a value.
    """

    filename: str  # of the script it stands in, 'cell of f' of a cell, or '<imports of f>'
    first_line: int  # where `text` begins in that file
    text: str
    slot: str = ""  # what other pieces call the object that is made; '' for imports
    defines: str = ""  # the name that the text binds to it
    names: tuple[str, ...] = ()  # the module's names that it is bound to in the end
    closure: tuple[tuple[str, str], ...] | None = None  # `defines` is a factory: its parameters and their references
    given: tuple[tuple[str, str], ...] = ()  # names that the text needs only while it is executed, and references
    attributes: tuple[tuple[str, str], ...] = ()  # of the object, to be set when all pieces are done, and references
    future: tuple[str, ...] = ()  # features of `__future__` that it is compiled with


@dataclass(frozen=True, kw_only=True, slots=True)
class Captured:
    """A function or class, ready to travel."""

    name: str  # as people know it: 'matmul_benchmark', 'Model.Config'
    module: str  # to import, a module of the bundle or an installed one; '' where `pieces` hold everything
    qualname: str  # attribute path in that module; the slot among the pieces
    root: str | None  # absolute; the folder whose bundle has to travel along
    sys_path: tuple[str, ...]  # folders below root ('' is root itself) that come first on sys.path there
    source: str  # all pieces as one text, for people; '' where a module is imported
    pieces: tuple[Piece, ...]  # in the order of execution
    data: dict[str, Any] = field(
        hash=False
    )  # plain data by value: 'scale', 'Config.lr', 'f[k]' closure, 'f(lr)' default
    kind: str  # 'function', 'generator' or 'class'
    is_async: bool = False  # the function is a coroutine function: run it with asyncio.run
    file: str = ""  # path of the script below root, for `__file__`; '' for notebooks
    cells: dict[str, str] = field(default_factory=dict[str, str], hash=False)  # 'cell of f': 'cell 7', while it is that
    digest: str = ""  # SHA-256, hexadecimal, of all of the above but the cells and the data's values

    def spec(self) -> dict[str, Any]:
        """Everything that the worker needs but the data, as dicts, lists and str. It has no cells: they come and go."""
        return {**_described(self), "digest": self.digest}

    def with_digest(self) -> Captured:
        """The same, with `digest`."""
        described = {**_described(self), "root": self.root, "data": list(self.data)}
        text = json.dumps(described, sort_keys=True, separators=(",", ":"))
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        values = {name: getattr(self, name) for name in self.__slots__}
        return Captured(**{**values, "digest": digest})


def _described(captured: Captured) -> dict[str, Any]:
    return {
        "name": captured.name,
        "module": captured.module,
        "qualname": captured.qualname,
        "sys_path": list(captured.sys_path),
        "pieces": [_piece(piece) for piece in captured.pieces],
        "kind": captured.kind,
        "is_async": captured.is_async,
        "file": captured.file,
    }


def _piece(piece: Piece) -> dict[str, Any]:
    return {
        "filename": piece.filename,
        "first_line": piece.first_line,
        "text": piece.text,
        "slot": piece.slot,
        "defines": piece.defines,
        "names": list(piece.names),
        "closure": None if piece.closure is None else [list(pair) for pair in piece.closure],
        "given": [list(pair) for pair in piece.given],
        "attributes": [list(pair) for pair in piece.attributes],
        "future": list(piece.future),
    }
