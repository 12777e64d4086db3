"""What a mutant is: one fault in one module, put in while the module is imported."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from types import CodeType


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One fault. `line`: the source that it changes, as people read it; `edit`: from the source to the faulty tree."""

    module: str
    line: str
    edit: Callable[[str], ast.Module]


def source_of(module: str) -> str:
    """The source of a module, which is not imported for that."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise ImportError(f"no module {module} to mutate")
    return Path(spec.origin).read_text(encoding="utf-8")


class Finder(MetaPathFinder):
    """Loads one module with its fault. Must stand in `sys.meta_path` before the module is imported."""

    def __init__(self, mutant: Mutant):
        self._mutant = mutant

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        if fullname != self._mutant.module:
            return None
        spec = PathFinder.find_spec(fullname, path)  # type: ignore[arg-type]
        if spec is None or spec.origin is None:
            raise ImportError(f"no module {fullname} to mutate")
        spec.loader = _Loader(fullname, spec.origin, self._mutant)
        return spec


class _Loader(SourceFileLoader):
    def __init__(self, fullname: str, path: str, mutant: Mutant):
        super().__init__(fullname, path)
        self._mutant = mutant

    def get_code(self, fullname: str) -> CodeType:
        tree = self._mutant.edit(self.get_data(self.path).decode())
        return compile(tree, self.path, "exec")
