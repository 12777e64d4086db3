"""What a program misses that stayed at home: an error's words, held against the files that did not travel."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import replace

from gpulayer.source.errors import shown
from gpulayer.source.ignore import Exclusion, literal
from gpulayer.source.scan import Bundle

__all__ = ["glob_of", "why_missing"]

_MODULE = re.compile(r"No module named '?([\w.]+)")
_NAME = re.compile(r"cannot import name '(\w+)' from '([\w.]+)'")
_FILES = (
    re.compile(r"No such file or directory: '([^'\n]+)'"),
    re.compile(r"([^\s:'\"]+)'?: (?:\[Errno 2\] )?No such file or directory"),
)
_WORKSPACE = "/workspace/"  # a job's folder ends so
_BINARY = (".so", ".pyd")


def why_missing(bundle: Bundle, text: str) -> str:
    """Why the file or module that an error names did not travel, and how it would; '' where that is not the cause.

    Args:
        bundle: what travelled.
        text: the error as Python or a shell says it, or the last lines of a program; the last cause in it counts.
    """
    for path in _missed(bundle, text):
        exclusion = bundle.why_left_out(path)
        if exclusion is not None and os.path.lexists(os.path.join(bundle.root, path)):
            return f"{_named(replace(exclusion, path=path))}; {_remedy(path, exclusion)}"
    return ""


def glob_of(path: str) -> str:
    """The glob that names this path and no other, as a shell's word."""
    return shlex.quote(literal(path))


def _missed(bundle: Bundle, text: str) -> Iterator[str]:
    """Paths below the source folder that may be what is missing, the likeliest first."""
    found = [(match.start(), _modules(bundle, match[1])) for match in _MODULE.finditer(text)]
    found += [(match.start(), _modules(bundle, f"{match[2]}.{match[1]}")) for match in _NAME.finditer(text)]
    for pattern in _FILES:
        found += [(match.start(), _files(match[1])) for match in pattern.finditer(text)]
    for _, paths in sorted(found, key=lambda each: each[0], reverse=True):
        yield from paths


def _modules(bundle: Bundle, module: str) -> Iterator[str]:
    path = module.strip(".").replace(".", "/")
    yield from (f"{path}.py", f"{path}/__init__.py", path)
    folder, _, leaf = path.rpartition("/")
    for name in _listed(os.path.join(bundle.root, folder)):
        if name.startswith(f"{leaf}.") and name.endswith(_BINARY):
            yield f"{folder}/{name}" if folder else name
    endings = (f"/{path}.py", f"/{path}")  # somewhere below, on a sys.path of the program's own
    yield from (exclusion.path for exclusion in bundle.exclusions if exclusion.path.endswith(endings))


def _files(path: str) -> Iterable[str]:
    if os.path.isabs(path):
        _, workspace, path = path.partition(_WORKSPACE)
        if not workspace:
            return
    path = os.path.normpath(path).replace(os.sep, "/")
    if not path.startswith("../"):
        yield path


def _listed(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _named(exclusion: Exclusion) -> str:
    return str(replace(exclusion, path=shown(exclusion.path)))


def _remedy(path: str, exclusion: Exclusion) -> str:
    if exclusion.file == "--exclude":
        return "narrow that --exclude"
    if exclusion.file == "scan":
        return "put a plain file in its place"
    return f"--include {glob_of(path)} takes it along"
