"""What can be wrong with a source folder, a manifest, a pack or a workspace.

Each error is one line that says what happened, to which path, and what to do next.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = [
    "ManifestError",
    "PackError",
    "SecretRefused",
    "SourceChanged",
    "SourceConflict",
    "SourceError",
    "SourceTooLarge",
    "SymlinkRefused",
    "WorkspaceError",
    "shown",
]


class SourceError(ValueError):
    """A source folder cannot be bundled, or a bundle cannot be used."""


class SourceTooLarge(SourceError):
    """The folder holds more, or larger, files than a bundle may carry."""


class SecretRefused(SourceError):
    """A file that looks like a secret would travel."""


class SymlinkRefused(SourceError):
    """A symlink leaves the folder or runs in a circle."""


class SourceChanged(SourceError):
    """A file changed while it was read."""


class ManifestError(SourceError):
    """The bytes are no manifest, or an entry of it is not safe to write to disk."""


class PackError(SourceError):
    """The bytes are no pack of blobs, it ends early, or a blob is not what its digest says."""


class WorkspaceError(SourceError):
    """A workspace cannot be written: something stands in the way, or a blob is missing or short."""


class SourceConflict(SourceError):
    """Files changed at home and in the session's workspace too; nothing was touched.

    Attributes:
        paths: the files, relative to the workspace, sorted.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self.paths: tuple[str, ...] = tuple(sorted(paths))
        listed = ", ".join(shown(path) for path in self.paths[:5])
        more = f" and {len(self.paths) - 5} more" if len(self.paths) > 5 else ""
        super().__init__(
            f"changed here and in the session's workspace too: {listed}{more}; "
            "leave the file out with --exclude, or take a session of another name, which begins with what is here"
        )


def shown(path: str) -> str:
    """The path as it may stand in a one-line message: quoted when it holds anything but plain characters."""
    plain = path.isprintable() and path == path.strip() and path != ""
    return path if plain else repr(path)
