"""Requirements, read once: what is written in them as versions, names and patterns, ready to be compared."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from gpulayer.protocol.types import LOCALITIES, Requirements
from gpulayer_server.scheduling.versions import Numbers, numbers

#: The kinds of accelerators there are.
ACCELERATORS = ("cuda", "rocm", "mps", "cpu")
#: The frameworks that workers look for and try out.
FRAMEWORKS = ("torch", "jax", "cupy", "mlx", "tensorflow")
OSES = ("linux", "darwin")

_MOST_NODES = 1_000
_MOST_DEVICES = 1_000  # of one machine
_MOST_BYTES = 2**60
_MOST_WORDS = 64  # names of devices, frameworks, labels: of each
_LETTERS = 200  # of one of them
_FRAMEWORK = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(.*)", re.DOTALL)
_MEANT = {
    "gpu": "cuda",
    "nvidia": "cuda",
    "amd": "rocm",
    "metal": "mps",
    "apple": "mps",
    "pytorch": "torch",
    "tf": "tensorflow",
}
_ARCHES = {"aarch64": "arm64", "amd64": "x86_64", "x64": "x86_64"}
_OSES = {"macos": "darwin", "mac": "darwin", "osx": "darwin"}


@dataclass(frozen=True, kw_only=True)
class AskedFramework:
    """A framework that has to work, in some versions."""

    text: str  # as it was asked for, 'torch>=2.4'
    name: str
    versions: SpecifierSet | None  # None: any


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a job needs of one machine, ready to be compared."""

    kind: str | None  # of device; None: none is needed
    count: int
    vram_bytes: int | None
    share_bytes: int | None
    names: re.Pattern[str] | None  # fits any of the names
    globs: tuple[str, ...]  # as they were asked for
    capability: Numbers | None
    capability_text: str
    driver: Numbers | None
    driver_text: str
    frameworks: tuple[AskedFramework, ...]
    framework_names: frozenset[str]
    python: SpecifierSet | None
    os: str
    arch: str
    labels: tuple[tuple[str, str], ...]
    choosy: bool  # whether anything is asked of devices but their kind


def arch_of(text: str) -> str:
    """An architecture by the one name that we compare: arm64 for aarch64."""
    return _ARCHES.get(text.lower(), text.lower())


def os_of(text: str) -> str:
    """An operating system by the one name that we compare: darwin for macOS."""
    return _OSES.get(text.lower(), text.lower())


@lru_cache(maxsize=8192)
def asked(requirements: Requirements) -> Asked:
    """Read requirements; raises ValueError for those that `problem_of` refuses."""
    problem = problem_of(requirements)
    if problem is not None:
        raise ValueError(problem)
    globs = requirements.device_names
    frameworks = tuple(_framework(text) for text in requirements.frameworks)
    of_devices = (requirements.min_vram_bytes, requirements.vram_share_bytes, globs)
    return Asked(
        kind=requirements.device_kind,
        count=requirements.device_count,
        vram_bytes=requirements.min_vram_bytes,
        share_bytes=requirements.vram_share_bytes,
        names=re.compile("|".join(translate(glob.strip().lower()) for glob in globs)) if globs else None,
        globs=globs,
        capability=numbers(requirements.min_capability) if requirements.min_capability else None,
        capability_text=requirements.min_capability,
        driver=numbers(requirements.min_driver) if requirements.min_driver else None,
        driver_text=requirements.min_driver,
        frameworks=frameworks,
        framework_names=frozenset(each.name for each in frameworks),
        python=SpecifierSet(requirements.python) if requirements.python else None,
        os=os_of(requirements.os),
        arch=arch_of(requirements.arch),
        labels=tuple(_label(text) for text in requirements.labels),
        choosy=any((*of_devices, requirements.min_capability, requirements.min_driver, frameworks)),
    )


def problem_of(requirements: Requirements) -> str | None:
    """The first thing that is wrong with requirements, in one line; None where machines can be found for them."""
    checks = (_of_devices, _of_patterns, _of_frameworks, _of_host, _of_nodes)
    return next((problem for check in checks for problem in check(requirements)), None)


def _framework(text: str) -> AskedFramework:
    """Read 'torch>=2.4'; raises ValueError."""
    found = _FRAMEWORK.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"framework {_short(text)}: write a name, with versions or without, like 'torch>=2.4'")
    name = found[1].lower()
    if name not in FRAMEWORKS:
        near = _MEANT.get(name) or next(iter(difflib.get_close_matches(name, FRAMEWORKS, n=1, cutoff=0.7)), None)
        hint = f"; did you mean {near}?" if near in FRAMEWORKS else ""
        raise ValueError(f"framework {_short(name)}: workers look for {', '.join(FRAMEWORKS)}{hint}")
    return AskedFramework(
        text="".join(text.split()), name=name, versions=_versions(found[2], f"framework {_short(text)}")
    )


def _versions(text: str, where: str) -> SpecifierSet | None:
    """Read '>=2.4,<3'; raises ValueError."""
    if not text.strip():
        return None
    try:
        return SpecifierSet(text)
    except InvalidSpecifier:
        written = re.sub(r"[^0-9.].*|\.$", "", text.strip().lstrip("=<>!~ ")) or "2.4"
        raise ValueError(f"{where}: {_short(text.strip())} is no condition on versions; write it like '>={written}'")


def _label(text: str) -> tuple[str, str]:
    key, _, value = text.partition("=")
    return key, value


def _short(text: str) -> str:
    return repr(text if len(text) <= _LETTERS else f"{text[:_LETTERS]}…")


def _of_devices(asks: Requirements) -> Iterator[str]:
    kind = asks.accelerator
    if kind is not None and kind not in ACCELERATORS:
        meant = f"; did you mean {_MEANT[kind.lower()]}?" if kind.lower() in _MEANT else ""
        yield f"accelerator {_short(kind)}: there are {', '.join(ACCELERATORS)}{meant}"
    if not 0 <= asks.devices <= _MOST_DEVICES:
        yield f"devices is a number of devices, {_MOST_DEVICES:,} at most, not {asks.devices}"
    for name, value in _of_each_device(asks):
        if value and asks.device_kind is None:
            yield f"{name} is about devices: name their kind, like accelerator cuda"
    for name in ("min_vram_bytes", "vram_share_bytes", "ram_bytes"):
        count = getattr(asks, name)
        if count is not None and not 0 < count <= _MOST_BYTES:
            yield f"{name} is a number of bytes above 0, not {count}"
    if asks.vram_share_bytes is not None and asks.devices > 1:
        yield f"vram_share_bytes takes a part of one device: leave devices {asks.devices} out, or the share"


def _of_each_device(asks: Requirements) -> tuple[tuple[str, object], ...]:
    return (
        ("devices", asks.devices),
        ("min_vram_bytes", asks.min_vram_bytes),
        ("vram_share_bytes", asks.vram_share_bytes),
        ("device_names", asks.device_names),
        ("min_capability", asks.min_capability),
        ("min_driver", asks.min_driver),
    )


def _of_patterns(asks: Requirements) -> Iterator[str]:
    for name, words in (("device_names", asks.device_names), ("frameworks", asks.frameworks), ("labels", asks.labels)):
        if len(words) > _MOST_WORDS:
            yield f"{name} has {_MOST_WORDS} entries at most, these are {len(words):,}"
        for word in words:
            if not word.strip() or len(word) > _LETTERS or not word.isprintable():
                yield f"{name}: {_short(word)} is not one line of 1 to {_LETTERS} letters"
    for name, text, like in (("capability", asks.min_capability, "8.0"), ("driver", asks.min_driver, "535.104")):
        if text and numbers(text) is None:
            yield f"min_{name} {_short(text)} is no version: write it like {like}"


def _of_frameworks(asks: Requirements) -> Iterator[str]:
    try:
        for text in asks.frameworks:
            _framework(text)
        _versions(asks.python, f"python {_short(asks.python)}")
    except ValueError as error:
        yield str(error)


def _of_host(asks: Requirements) -> Iterator[str]:
    cores = asks.cpu_cores
    if cores is not None and not (math.isfinite(cores) and cores > 0):
        yield f"cpu_cores is a number of cores above 0, not {cores}"
    if asks.os and os_of(asks.os) not in OSES:
        yield f"os {_short(asks.os)}: workers run on {' and '.join(OSES)}"
    if len(asks.arch) > _LETTERS or not asks.arch.isprintable():
        yield f"arch {_short(asks.arch)}: write it like x86_64 or arm64"
    for text in asks.labels:
        if not _label(text)[0].strip() or "=" not in text:
            yield f"label {_short(text)} of workers: write it key=value"


def _of_nodes(asks: Requirements) -> Iterator[str]:
    if not 1 <= asks.nodes <= _MOST_NODES:
        yield f"nodes is a number of machines from 1 to {_MOST_NODES:,}, not {asks.nodes}"
    if asks.locality not in LOCALITIES:
        yield f"locality {_short(asks.locality)}: there are {', '.join(LOCALITIES)}"
    if asks.nodes > 1 and asks.worker is not None:
        yield f"worker {_short(asks.worker)} is one machine: leave it out, or nodes {asks.nodes}"
