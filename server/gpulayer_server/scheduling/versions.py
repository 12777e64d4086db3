"""Versions: of packages and Python by PEP 440, of drivers and compute capabilities by their numbers."""

from __future__ import annotations

import re
from functools import lru_cache

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

Numbers = tuple[int, ...]

_NUMBERS = re.compile(r"\d{1,9}(\.\d{1,9})*")
_BEGINNING = re.compile(r"\d+(\.\d+)*")
#: The first driver branch of each major version of CUDA that a build of any of its minor versions runs on.
_BRANCHES = ((580, 13), (525, 12), (450, 11))


def numbers(text: str) -> Numbers | None:
    """'535.104.05' as (535, 104, 5), zeros at the end left out; None for what is no such version."""
    if _NUMBERS.fullmatch(text) is None:
        return None
    parts = [int(part) for part in text.split(".")]
    while parts and not parts[-1]:
        parts.pop()
    return tuple(parts)


@lru_cache(maxsize=4096)
def known_numbers(text: str) -> Numbers | None:
    """The numbers with which a version as a machine tells it begins; None where it begins with none."""
    found = _BEGINNING.match(text.strip())
    return numbers(found[0]) if found else None


def at_least(version: str, wanted: Numbers) -> bool:
    """Whether a version is this one or a newer one; an unknown one is not."""
    found = known_numbers(version)
    return found is not None and found >= wanted


@lru_cache(maxsize=4096)
def parsed(version: str) -> Version | None:
    """A version by PEP 440, as far as it can be read as one; None where it can't."""
    try:
        return Version(version.strip().rstrip("+"))  # '3.13.0+' is a Python that was built from a checkout
    except InvalidVersion:
        found = _BEGINNING.match(version.strip())
        return Version(found[0]) if found else None


@lru_cache(maxsize=16384)
def satisfies(version: str, wanted: SpecifierSet) -> bool:
    """Whether an installed version meets conditions.

    What is installed was chosen by a person, so that a pre-release counts: '2.14.0.dev1' meets '>=2.4', but not
    '>=2.14', which is newer. A local version meets what its public one meets: '2.13.0+cu130' is '==2.13.0'.
    """
    found = parsed(version)
    return found is not None and wanted.contains(found, prereleases=True)


def cuda_release(cuda: str, driver: str) -> str:
    """The builds for CUDA that a driver can run, as people name them: '12.x'; '' where that is not known.

    Args:
        cuda: the highest version of CUDA that the driver supports, like '12.2'; '' unknown.
        driver: its own version.
    """
    found = known_numbers(cuda)
    if found:
        return f"{found[0]}.x"
    branch = known_numbers(driver) or (0,)
    return next((f"{major}.x" for first, major in _BRANCHES if branch[0] >= first), "")
