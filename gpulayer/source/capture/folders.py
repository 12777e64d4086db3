"""The folder that travels along with functions of a notebook or a script."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpulayer.source.capture.modules import marked, project_root
from gpulayer.source.capture.records import CaptureError

__all__ = ["Roots", "names_files", "roots", "script_below", "session_folder"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Roots:
    """What travels, and where modules lie in it."""

    root: str | None
    sys_path: tuple[str, ...]


def session_folder(namespace: Mapping[str, Any]) -> str:
    """The folder of the notebook or script that a namespace belongs to."""
    for path in (os.environ.get("JPY_SESSION_NAME"), namespace.get("__vsc_ipynb_file__")):
        if isinstance(path, str) and path.endswith(".ipynb") and os.path.isabs(path) and os.path.exists(path):
            return os.path.dirname(path)
    script = namespace.get("__file__")
    if isinstance(script, str) and os.path.isfile(script):
        return os.path.dirname(os.path.abspath(script))
    return os.getcwd()


def names_files(strings: Iterable[str], folder: str) -> bool:
    """Whether one of the texts of a function is the name of a file or folder below the notebook's folder."""
    texts = [text for text in strings if not os.path.isabs(text) and text.strip("./") and text[:1] != "~"]
    named = any(os.path.exists(os.path.join(folder, text)) for text in texts if not text.startswith(".."))
    return named and not _is_too_wide(folder)


def roots(folders: Mapping[str, str], session: str, name: str, *, needs_files: bool) -> Roots:
    """One folder that holds all of those that modules are imported from, and the session's.

    Args:
        folders: that must be on sys.path there, and the module that needs each.
        session: the notebook's or script's folder; where it travels, it comes first on sys.path.
        name: of the function, for errors.
        needs_files: of the session's folder; without it that one is left out where no folder holds it and the modules.
    """
    if not folders and not needs_files:
        return Roots(root=None, sys_path=())
    wanted = [session, *(each for each in folders if each != session)]
    root = _common(wanted)
    if (root is None or _is_too_wide(root)) and not needs_files and session not in folders:
        wanted = wanted[1:]
        root = _common(wanted)
    if root is None:
        which = ", ".join(map(repr, folders.values()))
        raise CaptureError(
            f"{name} needs modules ({which}) of folders that do not lie in one project ({', '.join(wanted)}): "
            "move them into one folder, or install one of them on the workers"
        )
    ways = (os.path.relpath(each, root) for each in wanted)
    return Roots(root=root, sys_path=tuple("" if way == "." else way.replace(os.sep, "/") for way in ways))


def _is_too_wide(folder: str) -> bool:
    """Whether a folder holds all sorts of things, and never travels by itself."""
    return os.path.realpath(folder) in (os.path.realpath(os.path.expanduser("~")), os.path.abspath(os.sep))


def _common(folders: list[str]) -> str | None:
    """The folder above all: one of them, or the top of a project."""
    tops = [project_root(each)[0] for each in folders]
    try:
        common = os.path.commonpath(tops)
    except ValueError:  # different drives
        return None
    return common if common in tops or marked(common) else None


def script_below(namespace: Mapping[str, Any], root: str | None) -> str:
    """The path of the script below root, for `__file__` there; '' for a notebook."""
    script = namespace.get("__file__")
    if root is None or not isinstance(script, str):
        return ""
    way = os.path.relpath(os.path.abspath(script), root).replace(os.sep, "/")
    return "" if way.startswith("..") else way
