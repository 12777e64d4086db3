"""The walk through a source folder: which files travel, which do not and why. Nothing is read but ignore files.

Ignore rules decide in this order, the first that has an opinion wins: `exclude`; `include`; the ignore files from the
entry's own folder up (`.gpulayerignore` before `.gitignore`), past the source folder up to the top of its git
repository; the defaults. Only a pattern with a name in it overrides a default: `!checkpoints/` does, and `!*/`, said
against a `*` of the same file, does not bring `.venv`. A folder that is left out is not entered.

Symlinks are carried as what they point at, under their own name, if that lies inside the source folder; they are
matched against ignore rules as what they point at. One that leaves the folder or leads back to a folder it lies in is
refused, one that points nowhere is left out.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from gpulayer.source.errors import SourceError, SymlinkRefused, shown
from gpulayer.source.ignore import (
    DEFAULT_EXCLUDES,
    ENVIRONMENT_MARKS,
    IGNORE_FILES,
    NEVER_BY_IGNORE_FILE,
    Exclusion,
    Includes,
    Layer,
    compile_lines,
)
from gpulayer.source.layers import layers_above, layers_of
from gpulayer.source.secrets import secret_name

__all__ = ["Found", "Rules", "Secret", "Walk", "listing"]


class Found(NamedTuple):
    """A file that travels."""

    path: str  # in the bundle
    source: str  # absolute, no symlink in it
    status: os.stat_result


class Secret(NamedTuple):
    """A file that would travel and looks like a secret."""

    path: str
    what: str


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Rules:
    """What a person said about the source folder, compiled."""

    include: Includes
    exclude: Layer
    defaults: Layer

    @classmethod
    @lru_cache(maxsize=64)
    def of(cls, include: tuple[str, ...], exclude: tuple[str, ...], notebooks: bool) -> Rules:
        """Rules from globs; `notebooks` says whether `*.ipynb` travels."""
        defaults = DEFAULT_EXCLUDES if notebooks else (*DEFAULT_EXCLUDES, "*.ipynb")
        return cls(
            include=Includes(include),
            exclude=Layer(rules=compile_lines(exclude), file="--exclude", numbered=False),
            defaults=Layer(rules=compile_lines(defaults), file="default", numbered=False),
        )

    @lru_cache(maxsize=8192)  # noqa: B019 (rules are themselves kept by `of`, and few)
    def travelling(self, source: str, prefix: str, layers: tuple[Layer, ...]) -> set[str]:
        """Names of regular files found to travel from a folder by an earlier walk with these very rules.

        The same answer would come out again, since all it depends on is here; the caller adds to it.
        """
        return set()


class _Folder:
    """A folder on the way: where it is, which rules hold in it, and whether anything in it travels."""

    __slots__ = ("closed", "layers", "named", "parent", "prefix", "source", "travels")

    def __init__(
        self,
        source: str,
        prefix: str,
        parent: _Folder | None,
        layers: tuple[Layer, ...],
        *,
        closed: Exclusion | None = None,
        named: bool = False,
    ) -> None:
        self.source = source  # absolute, no symlink in it
        self.prefix = prefix  # its path in the bundle with a slash, or ''
        self.parent = parent
        self.layers = layers  # the deepest first
        self.closed = closed  # ignored, and entered only because an include leads into it
        self.named = named  # by an include, it or a folder above it: ignore files have no say
        self.travels = False

    @property
    def path(self) -> str:
        return self.prefix[:-1]


class Walk:
    """One walk. `files()` yields what travels, folder by folder; the rest is in the attributes when it has ended.

    Attributes:
        exclusions: what was left out.
        secrets: files that would travel and look like secrets (none of them is yielded).
        scanned: how many files were seen, those left out one by one included.
        consulted: the folders and ignore files that decided what travels, beside the files that do.
        listings: what each folder that was entered listed, by its path on disk.
        linked: whether a symlink was seen.
    """

    def __init__(self, root: str, rules: Rules) -> None:
        self.root = root
        self.exclusions: list[Exclusion] = []
        self.secrets: list[Secret] = []
        self.scanned = 0
        self.consulted: list[str] = []
        self.listings: dict[str, frozenset[str]] = {}
        self.linked = False
        self._rules = rules
        self._folders: list[_Folder] = []
        self._pending: list[_Folder] = []

    def files(self) -> Iterator[list[Found]]:
        """Walk, and give each folder's files. The order is the disk's.

        Raises:
            SymlinkRefused: a symlink leaves the folder or runs in a circle.
            SourceError: a folder cannot be listed.
        """
        self._pending.append(_Folder(self.root, "", None, tuple(layers_above(self.root))))
        while self._pending:
            yield self._enter(self._pending.pop())

    def empty_folders(self) -> list[str]:
        """Folders that were entered and in which nothing travels, the deepest ones only; after the walk."""
        empty: list[str] = []
        for folder in reversed(self._folders):  # children before their parents
            if folder.parent is None:
                continue
            if not folder.travels and folder.closed is None:
                empty.append(folder.path)
                folder.travels = True
            if folder.travels:
                folder.parent.travels = True
        return empty

    def _enter(self, folder: _Folder) -> list[Found]:
        found: list[Found] = []
        entries = _listed(folder)
        names = {entry.name for entry in entries}
        self.listings[folder.source] = listing(entries)
        self.consulted.append(folder.source)
        self.consulted += [os.path.join(folder.source, name) for name in IGNORE_FILES if name in names]
        if folder.parent is not None and folder.closed is None and self._is_environment(folder, names):
            return found
        self._folders.append(folder)
        if not folder.named:
            folder.layers = (*layers_of(folder.source, folder.prefix, names), *folder.layers)
        travelling = self._rules.travelling(folder.source, folder.prefix, folder.layers) if not folder.closed else set()
        for entry in entries:
            name = entry.name
            try:
                if name in travelling and entry.is_file(follow_symlinks=False):
                    found.append(Found(folder.prefix + name, entry.path, entry.stat(follow_symlinks=False)))
                    continue
                item = self._look_at(folder, entry)
            except FileNotFoundError:  # gone since the folder was listed: then it does not travel
                continue
            if item is not None:
                found.append(item)
                travelling.add(name)
        self.scanned += len(found)
        folder.travels = bool(found)
        return found

    def _look_at(self, folder: _Folder, entry: os.DirEntry[str]) -> Found | None:
        path = folder.prefix + entry.name
        link = entry.is_symlink()
        self.linked = self.linked or link
        # os.path.isdir: a circle of symlinks is no folder, where DirEntry.is_dir raises.
        if os.path.isdir(entry.path) if link else entry.is_dir(follow_symlinks=False):
            self._look_at_folder(folder, path, entry, link)
            return None
        found = self._look_at_file(folder, path, entry, link)
        if found is None:
            self.scanned += 1
        return found

    def _look_at_file(self, folder: _Folder, path: str, entry: os.DirEntry[str], link: bool) -> Found | None:
        name = entry.name
        exclusion = self._excluded(folder, path, name, False)
        if exclusion is not None:
            if exclusion is not folder.closed:
                self.exclusions.append(exclusion)
            return None
        if "\\" in name:
            return self._leave_out(path, "a backslash in the name")
        if link:
            source = self._link_target(path, entry)
            if source is None:
                return None
            status = os.stat(source)
        else:
            source, status = entry.path, entry.stat(follow_symlinks=False)
        if not stat.S_ISREG(status.st_mode):
            return self._leave_out(path, "no regular file (socket, fifo or device)")
        # The real name, and a symlink's own: `settings -> .env` carries a secret too.
        what = secret_name(_posix(source)) or (secret_name(path) if link else None)
        if what is not None and not self._rules.include.names(path, name, False):
            self.secrets.append(Secret(path, what))
            return None
        return Found(path, source, status)

    def _look_at_folder(self, folder: _Folder, path: str, entry: os.DirEntry[str], link: bool) -> None:
        name, include = entry.name, self._rules.include
        exclusion = self._excluded(folder, path, name, True)
        if exclusion is not None and exclusion is not folder.closed:
            self.exclusions.append(exclusion)
        if exclusion is not None and not (exclusion.file != "--exclude" and include.lead_into(path)):
            return
        if "\\" in name:
            self._leave_out(path, "a backslash in the name")
            return
        source = self._link_target(path, entry) if link else entry.path
        if source is None:
            return
        if link:
            self._refuse_circle(folder, path, source)
        named = folder.named or (exclusion is None and bool(include) and include.match(path, name, True))
        layers = () if named or exclusion is not None else folder.layers
        self._pending.append(_Folder(source, path + "/", folder, layers, closed=exclusion, named=named))

    def _excluded(self, folder: _Folder, path: str, name: str, is_dir: bool) -> Exclusion | None:
        rules = self._rules
        if rules.exclude.rules:
            rule = rules.exclude.match(path, name, is_dir)
            if rule is not None and not rule.negated:
                return rules.exclude.exclusion(path, rule)
        included = bool(rules.include) and rules.include.match(path, name, is_dir)
        if folder.closed is not None and not included:
            return folder.closed
        kept_by_name = False
        for layer in folder.layers:
            rule = layer.match(path, name, is_dir)
            if rule is not None:
                if not rule.negated and not included:
                    return layer.exclusion(path, rule)
                kept_by_name = rule.negated and rule.names_something and name not in NEVER_BY_IGNORE_FILE
                break
        rule = rules.defaults.match(path, name, is_dir)
        if rule is None or kept_by_name or rules.include.names(path, name, is_dir) or self._is_package(folder, name):
            return None
        return rules.defaults.exclusion(path, rule)

    def _is_environment(self, folder: _Folder, names: set[str]) -> bool:
        mark = next((mark for mark in ENVIRONMENT_MARKS if mark in names), None)
        if mark is None or self._rules.include.names(folder.path, folder.path.rpartition("/")[2], True):
            return False
        self.exclusions.append(Exclusion(path=folder.path, rule=f"an environment: holds {mark}", file="default"))
        return True

    def _is_package(self, folder: _Folder, name: str) -> bool:
        """A folder `env` with an `__init__.py` is somebody's code (gym environments), no environment of packages."""
        if name not in ("env", "venv"):
            return False
        path = os.path.join(folder.source, name)
        self.consulted.append(path)
        return os.path.isfile(os.path.join(path, "__init__.py"))

    def _leave_out(self, path: str, reason: str) -> None:
        self.exclusions.append(Exclusion(path=path, rule=reason, file="scan"))

    def _link_target(self, path: str, entry: os.DirEntry[str]) -> str | None:
        """Where a symlink leads, absolute; None if nowhere (recorded)."""
        target = os.path.realpath(entry.path)
        if target != self.root and not target.startswith(self.root.rstrip(os.sep) + os.sep):
            raise SymlinkRefused(
                f"{shown(path)} is a symlink that leaves the source folder (to {shown(target)}); leave it out with "
                f"--exclude {shown(path)} or in .gpulayerignore, or put the files into the folder"
            )
        try:
            os.stat(entry.path)
        except FileNotFoundError:
            self._leave_out(path, "a symlink that points nowhere")
            return None
        except OSError as error:
            raise SymlinkRefused(
                f"{shown(path)} is a symlink that runs in a circle ({error.strerror}); "
                "remove it or leave it out with --exclude"
            ) from error
        return target

    def _refuse_circle(self, folder: _Folder, path: str, target: str) -> None:
        above: _Folder | None = folder
        while above is not None:
            if above.source == target:
                raise SymlinkRefused(
                    f"{shown(path)} is a symlink to a folder that it lies in ({above.path or '.'}); "
                    "remove it or leave it out with --exclude"
                )
            above = above.parent


def _listed(folder: _Folder) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder.source) as entries:
            return list(entries)
    except FileNotFoundError:
        if folder.parent is None:
            raise SourceError(f"source folder {shown(folder.source)} is gone; run it again") from None
        return []
    except OSError as error:
        raise SourceError(
            f"folder {shown(folder.path or folder.source)} cannot be listed: {error.strerror}; "
            "leave it out with --exclude"
        ) from error


def listing(entries: Iterable[os.DirEntry[str]]) -> frozenset[str]:
    """What a folder lists, comparable: names, folders with a slash behind, symlinks with two."""
    return frozenset(
        entry.name + ("//" if entry.is_symlink() else "/") if not entry.is_file(follow_symlinks=False) else entry.name
        for entry in entries
    )


def _posix(source: str) -> str:
    return source if os.sep == "/" else source.replace(os.sep, "/")
