"""Where modules come from: Python itself, installed distributions, or a project folder that has to travel."""

from __future__ import annotations

import importlib.util
import os
import site
import sys
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any

__all__ = ["SESSIONS", "Place", "attribute", "import_name", "place_of", "place_of_name", "project_root", "public_place"]

SESSIONS = frozenset({"__main__", "__mp_main__"})
"""Names of modules that no other interpreter can import."""
_MARKS = ("pyproject.toml", "setup.py", "setup.cfg", ".git")


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a module comes from."""

    folder: str | None  # local: the folder that has to be on sys.path; None for Python's own and installed ones


_ELSEWHERE = Place(folder=None)


def place_of(module: ModuleType) -> Place | None:
    """Where a module comes from; None for one that can't be found anywhere (made by hand)."""
    name = module.__name__
    file = getattr(module, "__file__", None)
    if name.partition(".")[0] == "gpulayer":  # its checkout is nobody's project but ours
        return _ELSEWHERE
    if not isinstance(file, str):
        folders = [each for each in getattr(module, "__path__", ()) if isinstance(each, str)]  # a namespace package
        if not folders:
            return _ELSEWHERE if _known(name) or getattr(module, "__spec__", None) is not None else None
        file = os.path.join(folders[0], "__init__.py")
    return _place(name, os.path.abspath(file))


def place_of_name(name: str) -> Place | None:
    """Where a module that a function imports comes from; None when there is none: it may be there on the worker."""
    top = name.partition(".")[0]
    module = sys.modules.get(name) or sys.modules.get(top)
    if isinstance(module, ModuleType) and top not in SESSIONS:
        return place_of(module)
    if _known(top):
        return _ELSEWHERE
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, AttributeError, ValueError):
        return None
    if spec is None:
        return None
    if spec.origin and spec.has_location:
        return _place(top, os.path.abspath(spec.origin))
    folders = list(spec.submodule_search_locations or ())
    return _place(top, os.path.join(os.path.abspath(folders[0]), "__init__.py")) if folders else _ELSEWHERE


def import_name(module: ModuleType) -> str | None:
    """The name under which `import` gives this very module; None if there is none."""
    if module is os.path:
        return "os.path"  # its own name differs between systems
    name = module.__name__
    if name not in SESSIONS and sys.modules.get(name) is module:
        return name
    return next((key for key, each in list(sys.modules.items()) if each is module and key not in SESSIONS), None)


def attribute(module: str, qualname: str) -> Any:
    """What an attribute path in a module gives now; None if nothing."""
    holder = sys.modules.get(module)
    if not isinstance(holder, ModuleType) or module in SESSIONS:
        return None
    first, *steps = qualname.split(".")
    value = holder.__dict__.get(first)  # a lazy module may import anything when it is asked for an attribute
    for step in steps:
        value = getattr(value, step, None) if step.isidentifier() else None
    return value


def public_place(value: Any, names: tuple[str, ...]) -> tuple[str, str] | None:
    """A module and a name in it that give this very object, of the names that it may have there.

    The module of its type's own package wins, and the shorter name: `numpy`, not `numpy._core.umath`.
    """
    family = str(type(value).__module__).partition(".")[0]
    best: tuple[bool, int, str, str] | None = None
    for key, module in list(sys.modules.items()):
        if key in SESSIONS or not isinstance(module, ModuleType):
            continue
        for name in names:
            if module.__dict__.get(name) is value:
                found = (key.partition(".")[0] != family, len(key), key, name)
                best = found if best is None or found < best else best
    return None if best is None else (best[2], best[3])


def project_root(folder: str) -> tuple[str, str]:
    """The folder that travels so that `folder` can be on sys.path there, and the way down to it ('' for itself).

    The folder `src` of a project travels as the project.
    """
    above, name = os.path.split(folder)
    if name == "src" and marked(above):
        return above, name
    return folder, ""


def marked(folder: str) -> bool:
    """Whether a folder is the top of a project."""
    return any(os.path.exists(os.path.join(folder, mark)) for mark in _MARKS)


def _known(name: str) -> bool:
    top = name.partition(".")[0]
    return top in sys.stdlib_module_names or top in sys.builtin_module_names


@lru_cache(maxsize=4096)
def _place(name: str, file: str) -> Place | None:
    if any(_within(file, folder) for folder in _installed_folders()):
        return _ELSEWHERE
    package = os.path.basename(file).partition(".")[0] == "__init__"
    folder = os.path.dirname(file)
    steps = name.split(".")
    for step in reversed(steps if package else steps[:-1]):
        if os.path.basename(folder) != step:
            return _by_init_files(file)
        folder = os.path.dirname(folder)
    return Place(folder=folder) if os.path.isdir(folder) else None


def _by_init_files(file: str) -> Place | None:
    folder = os.path.dirname(file)
    while os.path.isfile(os.path.join(folder, "__init__.py")):
        folder = os.path.dirname(folder)
    return Place(folder=folder) if os.path.isdir(folder) else None


@lru_cache(maxsize=1)
def _installed_folders() -> tuple[str, ...]:
    import sysconfig

    paths = sysconfig.get_paths()
    folders = [paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib") if key in paths]
    folders += site.getsitepackages() if hasattr(site, "getsitepackages") else []
    user = site.getusersitepackages() if hasattr(site, "getusersitepackages") else None
    if isinstance(user, str):
        folders.append(user)
    return tuple({each for folder in folders for each in (os.path.abspath(folder), os.path.realpath(folder))})


def _within(path: str, folder: str) -> bool:
    parts = path.split(os.sep)
    return path.startswith(folder.rstrip(os.sep) + os.sep) or "site-packages" in parts or "dist-packages" in parts
