"""Ignore files on disk: those of a folder, and those above the source folder in its git repository."""

from __future__ import annotations

import os
from collections.abc import Iterator

from gpulayer.source.errors import SourceError, shown
from gpulayer.source.ignore import IGNORE_FILES, Layer

__all__ = ["layers_above", "layers_of"]


def layers_of(source: str, prefix: str, names: set[str]) -> Iterator[Layer]:
    """The ignore files of a folder inside the source folder, the one that decides first.

    Args:
        source: the folder on disk.
        prefix: its path in the bundle with a slash, or ''.
        names: what it lists.
    """
    for name in reversed(IGNORE_FILES):
        if name in names:
            content = _read_ignore_file(os.path.join(source, name))
            if content is not None:
                yield Layer.of_file(content, prefix + name, "", len(prefix))


def layers_above(root: str) -> list[Layer]:
    """The ignore files from the source folder's parent up to the top of its git repository, if it lies in one.

    If they ignore the source folder itself they do not count: a person chose to work there (a home folder kept in git
    with `*` as its rule would leave out everything).
    """
    parents = _parents_in_repository(root)
    layers: list[Layer] = []
    base = ""
    below = root
    for height, here in enumerate(parents, 1):
        base = f"{os.path.basename(below)}/{base}"
        below = here
        for file in reversed(IGNORE_FILES):
            content = _read_ignore_file(os.path.join(here, file))
            if content is not None:
                layers.append(Layer.of_file(content, "../" * height + file, base, 0))
    return [] if any(_ignores(layers, steps) for steps in range(len(parents))) else layers


def _parents_in_repository(root: str) -> list[str]:
    """The folders above the source folder up to the one that holds `.git`, the nearest first; none outside of git."""
    parents: list[str] = []
    here = root
    while not os.path.exists(os.path.join(here, ".git")):
        parent = os.path.dirname(here)
        if parent == here:
            return []
        parents.append(parent)
        here = parent
    return parents


def _ignores(layers: list[Layer], steps: int) -> bool:
    """Whether the layers ignore the folder that lies so many steps above the source folder."""
    for layer in layers:  # the nearest first
        parts = layer.base[:-1].split("/")
        parts = parts[: len(parts) - steps]
        if parts:
            rule = layer.rules.match("/".join(parts), parts[-1], True)
            if rule is not None:
                return not rule.negated
    return False


def _read_ignore_file(path: str) -> bytes | None:
    try:
        if os.path.islink(path):  # git does not follow them either
            return None
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SourceError(f"{shown(path)} cannot be read: {error.strerror}; its rules would be missed") from error
