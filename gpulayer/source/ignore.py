"""Ignore rules with git's meaning, and what GPUlayer leaves out by itself.

Patterns are translated by pathspec. Which pattern decides is evaluated here, entry by entry on the way down, as git
does it: a folder that is ignored is not entered, so a pattern must match the entry itself and never one of its parents
(pathspec's own evaluation is made for whole file paths and gives another answer for `*`, `!*/`, `!*.py`).
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = [
    "DEFAULT_EXCLUDES",
    "ENVIRONMENT_MARKS",
    "IGNORE_FILES",
    "NEVER_BY_IGNORE_FILE",
    "Exclusion",
    "Includes",
    "Layer",
    "Rule",
    "RuleSet",
    "compile_lines",
    "compile_rules",
    "literal",
]

IGNORE_FILES = (".gitignore", ".gpulayerignore")
"""Read in each folder, in this order: the later one decides."""

DEFAULT_EXCLUDES = (
    ".git",
    ".hg",
    ".svn",
    ".venv/",
    "venv/",
    "env/",
    "__pycache__/",
    ".ipynb_checkpoints/",
    "node_modules/",
    ".mypy_cache/",
    ".pytest_cache/",
    ".ruff_cache/",
    ".tox/",
    ".nox/",
    ".DS_Store",
    "*.pyc",
    "checkpoints/",
    "lightning_logs/",
    "wandb/",
    "mlruns/",
)
"""Left out unless an ignore file or an include names it (`!checkpoints/`). `scan` adds `*.ipynb`."""

NEVER_BY_IGNORE_FILE = (".git", ".hg", ".svn")
"""Of the defaults, those that no ignore file brings back (`!.git*` means `.gitignore`); an include does."""

ENVIRONMENT_MARKS = ("pyvenv.cfg", "conda-meta")
"""A folder that holds one of these is a Python or conda environment, whatever its name."""

_MEMO_ENTRIES = 200_000
_POSIX_CLASSES = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "blank": " \t",
    "digit": "0-9",
    "lower": "a-z",
    "space": " \t\r\n\v\f",
    "upper": "A-Z",
    "xdigit": "0-9A-Fa-f",
}
_GLOB = re.compile(r"[*?\[\\]")
_WHOLE_BRACKET = re.compile(r"\\.|\[[!^]?\]?[^\]]*\]")
_POSIX_CLASS = re.compile(r"\[:(" + "|".join(_POSIX_CLASSES) + r"):\]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Exclusion:
    """A file or folder that does not travel, and the rule that says so. Nothing below an excluded folder is listed."""

    path: str  # relative to the source folder
    rule: str  # the pattern as written, or the reason
    file: str  # the ignore file relative to the source folder, or 'default', '--exclude', 'scan'
    line: int | None = None  # in that file, from 1

    def __str__(self) -> str:
        where = f"{self.file} line {self.line}" if self.line is not None else f"{self.file} rule"
        return f"{self.path} was left out by {where} ({self.rule})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One line of an ignore file."""

    text: str  # as written
    line: int  # from 1
    negated: bool  # '!': what it matches travels
    folders_only: bool
    by_name: bool  # no slash: matches the last part of a path at any depth
    segments: tuple[str, ...]  # the pattern's parts
    matches: Callable[[str], bool]  # takes the name (by_name) or the path relative to the ignore file's folder

    @property
    def names_something(self) -> bool:
        """Whether its last part has a letter or digit: `.env*` has, `*` has not."""
        return any(character.isalnum() for character in self.segments[-1])


def literal(path: str) -> str:
    """The pattern that means this path, whatever letters it has."""
    escaped = _GLOB.sub(r"\\\g<0>", path)
    return "\\" + escaped if escaped[:1] in ("!", "#") else escaped


class RuleSet:
    """The rules of one ignore file. Decisions are remembered, since each cell asks for the same names again."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules: tuple[Rule, ...] = tuple(rules)
        self._last_first = tuple(reversed(self.rules))
        self._names_only = all(rule.by_name for rule in self.rules)
        self._memo: dict[tuple[str, bool], Rule | None] = {}

    def __bool__(self) -> bool:
        return bool(self.rules)

    def match(self, path: str, name: str, is_dir: bool) -> Rule | None:
        """The rule that decides for this entry (the last that matches), or None.

        Args:
            path: relative to the folder of the ignore file.
            name: its last part.
            is_dir: whether it is a folder.
        """
        key = (name if self._names_only else path, is_dir)
        try:
            return self._memo[key]
        except KeyError:
            if len(self._memo) >= _MEMO_ENTRIES:
                self._memo.clear()
            rule = self._memo[key] = self._find(path, name, is_dir)
            return rule

    def _find(self, path: str, name: str, is_dir: bool) -> Rule | None:
        for rule in self._last_first:
            if rule.folders_only and not is_dir:
                continue
            if rule.matches(name if rule.by_name else path):
                return rule
        return None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Layer:
    """A rule set and where it stands: its paths are `base + path[cut:]` of an entry's path in the source folder.

    Compared by identity: `Layer.of_file` gives the same object for the same content at the same place.
    """

    rules: RuleSet
    file: str  # as in Exclusion.file
    base: str = ""  # for ignore files above the source folder: the way from there to here
    cut: int = 0  # for ignore files inside: the length of their folder's path
    numbered: bool = True  # whether a line number means something

    @staticmethod
    @lru_cache(maxsize=1024)
    def of_file(content: bytes, file: str, base: str, cut: int) -> Layer:
        """The layer of an ignore file's bytes; the other arguments are its attributes."""
        return Layer(rules=compile_rules(content), file=file, base=base, cut=cut)

    def match(self, path: str, name: str, is_dir: bool) -> Rule | None:
        """The rule of this layer that decides for the entry at `path` (relative to the source folder)."""
        return self.rules.match(self.base + path[self.cut :], name, is_dir)

    def exclusion(self, path: str, rule: Rule) -> Exclusion:
        """The record that `rule` of this layer left out `path`."""
        return Exclusion(path=path, rule=rule.text, file=self.file, line=rule.line if self.numbered else None)


class Includes:
    """Globs that override ignore files and defaults; gitignore syntax, relative to the source folder.

    A glob with a slash also opens the ignored folders on its way (`build/model.bin` opens `build`); one without a slash
    matches at any depth, but only in folders that are entered anyway. A folder that is named brings all of its content,
    except what the defaults leave out.
    """

    def __init__(self, globs: Iterable[str]) -> None:
        self.rules = compile_lines(tuple(globs))

    def __bool__(self) -> bool:
        return bool(self.rules)

    def match(self, path: str, name: str, is_dir: bool) -> bool:
        """Whether a glob matches the entry."""
        rule = self.rules.match(path, name, is_dir)
        return rule is not None and not rule.negated

    def names(self, path: str, name: str, is_dir: bool) -> bool:
        """Whether a glob names the entry itself (`.env*` does, `*` does not): this overrides defaults and secrets."""
        rule = self.rules.match(path, name, is_dir)
        return rule is not None and not rule.negated and rule.names_something

    def lead_into(self, path: str) -> bool:
        """Whether a glob could match something below this ignored folder."""
        parts = path.split("/")
        return any(_leads(rule.segments, parts) for rule in self.rules.rules if not rule.by_name and not rule.negated)


def _leads(segments: tuple[str, ...], parts: list[str]) -> bool:
    if segments[0] == "**":  # would open every environment and cache
        return False
    for depth, part in enumerate(parts):
        if segments[depth] == "**":
            return True
        if not fnmatchcase(part, segments[depth]) or depth + 1 == len(segments):
            return False
    return True


def compile_lines(lines: tuple[str, ...]) -> RuleSet:
    """The rule set of some patterns; each one's line is its place, from 1."""
    return compile_rules("\n".join(lines).encode("utf-8", "surrogateescape"))


@lru_cache(maxsize=1024)
def compile_rules(content: bytes) -> RuleSet:
    """The rule set of an ignore file's bytes. Kept by content, so an edited file can never be mistaken for an old one.

    A pattern that git takes for broken (an unclosed bracket, a trailing backslash) matches nothing, as in git.
    """
    text = content.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")
    rules = (_compile(line.removesuffix("\r"), number) for number, line in enumerate(text.split("\n"), 1))
    return RuleSet(rule for rule in rules if rule is not None)


def _compile(line: str, number: int) -> Rule | None:
    text = _without_trailing_spaces(line)
    if not text or text.startswith("#"):
        return None
    negated = text.startswith("!")
    body = text[1:] if negated else text
    folders_only = body.endswith("/")
    body = body.removesuffix("/")
    if not body or body.endswith("/"):
        return None
    matches = _matcher(body)
    if matches is None:
        return None
    return Rule(
        text=text,
        line=number,
        negated=negated,
        folders_only=folders_only,
        by_name="/" not in body,
        segments=tuple(body.removeprefix("/").split("/")),
        matches=matches,
    )


def _without_trailing_spaces(line: str) -> str:
    while line.endswith(" ") and not line.endswith("\\ "):
        line = line[:-1]
    return line


def _matcher(body: str) -> Callable[[str], bool] | None:
    if "/" not in body and not _GLOB.search(body):
        return body.__eq__
    if "/" not in body and body[0] == "*" and len(body) > 1 and not _GLOB.search(body[1:]):
        # '*.pyc': so common that most folders need no pathspec at all.
        ending = body[1:]
        return lambda name: name.endswith(ending)
    if "[" in _WHOLE_BRACKET.sub("", body):
        return None
    if body[0] in "#!":
        body = "\\" + body
    if re.search(r"\[[^\]]*\[:", body):
        body = _POSIX_CLASS.sub(lambda found: _POSIX_CLASSES[found[1]], body)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # '[[]' is a fine glob; re only wonders about it
            regex: re.Pattern[str] | None = _pattern_class()(body).regex
    except (ValueError, re.error):
        return None
    if regex is None:
        return None
    return _searcher(regex)


def _searcher(regex: re.Pattern[str]) -> Callable[[str], bool]:
    # pathspec marks with this group that only a parent of the path was matched.
    marks_parent = "ps_d" in regex.groupindex

    def matches(path: str) -> bool:
        found = regex.search(path.replace("\n", "\0") if "\n" in path else path)  # '$' also matches before a newline
        return found is not None and not (marks_parent and found["ps_d"])

    return matches


@lru_cache(maxsize=1)
def _pattern_class() -> Callable[[str], Any]:
    from pathspec import GitIgnoreSpec  # 45 ms, and only folders with patterns need it

    return type(GitIgnoreSpec.from_lines(["*.x"]).patterns[0])
