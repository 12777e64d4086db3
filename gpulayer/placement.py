"""What a job may ask of its machine: the options of placement, alike in the terminal, in a notebook and in a program.

One table has them all: how each is called, how what is typed behind it is read, and which field of `Requirements` it
becomes. Whoever reads a line of options, or keyword arguments, hands them to `requirements`.
"""

from __future__ import annotations

import difflib
import inspect
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from operator import attrgetter
from typing import Any, TypeAlias, TypedDict, TypeVar

from gpulayer.parsing import parse_accelerator, parse_count, parse_name, parse_pair, parse_size
from gpulayer.protocol.requirements import LOCALITIES, Requirements

F = TypeVar("F", bound="Callable[..., Any]")
Size: TypeAlias = "int | str"
Texts: TypeAlias = "str | Sequence[str]"

FRAMEWORKS = ("torch", "jax", "cupy", "mlx", "tensorflow")
"""Those that workers try out."""

SYSTEMS = ("linux", "darwin")
ARCHITECTURES = ("x86_64", "arm64", "ppc64le", "riscv64")

_ALSO = {"macos": "darwin", "mac": "darwin", "osx": "darwin", "amd64": "x86_64", "x64": "x86_64", "aarch64": "arm64"}
_MEANT = {"pytorch": "torch", "tf": "tensorflow", "cuda-python": "cupy"}
_FRAMEWORK = re.compile(r"([A-Za-z][\w.-]*)\s*(.*)", re.DOTALL)
_VERSION = re.compile(r"\d{1,6}(?:\.\d{1,6}){0,3}")
_LETTERS = 200


class Placing(TypedDict, total=False):
    """The keyword arguments by which a program says what a job needs of its machine; of each one, where it takes many.

    Sizes are bytes, or texts such as '40GB'. Where several may be named, one text is one of them.
    """

    accelerator: str | None  # 'cuda', 'rocm', 'mps'; 'cpu' or None for any machine
    devices: int | str  # how many of these; 0 for one where `accelerator` names a kind
    min_vram: Size | None  # of each device
    vram_share: Size | None  # so much of one device, beside others that declare theirs; else it is exclusive
    device_names: Texts  # globs, any of which fits: 'A100*'
    min_capability: str | float | None  # compute capability, like 8.0
    min_driver: str | float | None  # like '535.104'
    frameworks: Mapping[str, str] | Texts  # that work on the devices: 'torch>=2.4', {'torch': '>=2.4'} (PEP 440)
    python: str | None  # of the worker's interpreter for jobs: '>=3.11', or '3.11'
    ram: Size | None  # that no other job may declare
    cpus: float | str | None  # likewise
    os: str | None  # 'linux', 'darwin'
    arch: str | None  # 'x86_64', 'arm64'
    worker_labels: Mapping[str, str] | Texts  # that the worker carries
    worker: str | None  # the name of the only machine that may run it
    nodes: int | str  # machines, all taken in one step
    group_locality: str | None  # 'prefer', 'require', 'spread', 'none'
    bind_cpus: bool  # to the cores next to its devices
    wait_for_worker: bool  # where no machine could run it, it waits for one


@dataclass(frozen=True, kw_only=True)
class Needs:
    """The same as fields; see `Placing`."""

    accelerator: str | None = None
    devices: int | str = 0
    min_vram: Size | None = None
    vram_share: Size | None = None
    device_names: Texts = ()
    min_capability: str | float | None = None
    min_driver: str | float | None = None
    frameworks: Mapping[str, str] | Texts = ()
    python: str | None = None
    ram: Size | None = None
    cpus: float | str | None = None
    os: str | None = None
    arch: str | None = None
    worker_labels: Mapping[str, str] | Texts = ()
    worker: str | None = None
    nodes: int | str = 1
    group_locality: str | None = None
    bind_cpus: bool = False
    wait_for_worker: bool = False

    def requirements(self) -> Requirements:
        """What is sent. Raises ValueError with one line that says which keyword, what of it, and what to write."""
        values = _values(self)
        try:
            return _remembered(*values)  # thousands of commands are made at once, mostly alike
        except TypeError:  # a list among them
            return requirements(dict(zip(BY_KEYWORD, values, strict=True)))


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option of placement."""

    flag: str  # as it is typed
    keyword: str  # as a program names it
    help: str
    parse: Callable[[Any], Any]  # takes a text, or a value; what it gave, it takes again. Raises ValueError
    field: str = ""  # of `Requirements`; '' for none
    metavar: str = ""  # '' for a switch
    repeats: bool = False
    of_devices: str = ""  # what it means of devices, where it means nothing without them


# ---------------------------------------------------------------- how each is read


def _size(value: Any) -> int:
    try:
        count = parse_size(value) if isinstance(value, str) else int(_number(value, "size"))
    except ValueError:
        count = 0
    if count <= 0:
        raise ValueError(f"{value!r} is no size; write it like 40GB")
    return count


def _count(value: Any) -> int:
    return parse_count(value if isinstance(value, str) else str(value))


def _cores(value: Any) -> float:
    cores = _number(value, "number of cores; write it like 4 or 0.5")
    if not 0 < cores <= 100_000:
        raise ValueError(f"{value!r} is no number of cores; write it like 4 or 0.5")
    return cores


def _number(value: Any, what: str) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is no {what}")
    return number


def _text(parse: Callable[[str], str]) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if not isinstance(value, str):
            raise ValueError(f"{value!r} is no text")
        return parse(value)

    return read


def _capability(value: Any) -> str:
    text = str(value).strip().lower().removeprefix("sm_").removeprefix("compute_")
    if re.fullmatch(r"\d{1,2}(\.\d)?", text) and float(text) < 20:
        return text
    meant = f"; did you mean {text[:-1]}.{text[-1]}?" if re.fullmatch(r"[2-9]\d|1[0-9]\d", text) else ""
    raise ValueError(f"{value!r} is no compute capability{meant or '; write it like 8.0'}")


def _driver(value: Any) -> str:
    text = str(value).strip()
    if not _VERSION.fullmatch(text):
        raise ValueError(f"{value!r} is no version of a driver; write it like 535.104")
    return text


def _texts(value: Any) -> list[str]:
    """One text, or several; none is empty."""
    texts: list[Any] = [value] if isinstance(value, str) or not isinstance(value, Iterable) else list(value)
    for text in texts:
        if not isinstance(text, str) or not text.strip() or len(text) > _LETTERS or not text.isprintable():
            raise ValueError(f"{str(text)[:_LETTERS]!r} names nothing")
    return [text.strip() for text in texts]


def _globs(value: Any) -> tuple[str, ...]:
    return tuple(sorted(set(_texts(value))))


def parse_framework(text: str) -> str:
    """'torch >= 2.4' as 'torch>=2.4'."""
    match = _FRAMEWORK.fullmatch(text)
    name, versions = (match.group(1).lower(), match.group(2)) if match is not None else ("", "")
    if name not in FRAMEWORKS:
        near = _MEANT.get(name) or next(iter(difflib.get_close_matches(name, FRAMEWORKS, n=1)), "")
        hint = f"; did you mean {near}?" if near else ""
        raise ValueError(f"unknown framework {text!r}: {_choice(FRAMEWORKS)}{hint}")
    if versions.startswith("["):
        raise ValueError(f"{text!r}: extras are of an installation, whether it works is tried out; write {name}")
    return name + _specifiers(versions, f"{text!r} is no framework with versions; write it like {name}>=2.4")


def _specifiers(text: str, wrong: str) -> str:
    """PEP 440 versions, always in one order."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        return str(SpecifierSet(text))
    except InvalidSpecifier:
        raise ValueError(wrong) from None


def _frameworks(value: Any) -> tuple[str, ...]:
    texts = [f"{name}{versions}" for name, versions in value.items()] if isinstance(value, Mapping) else _texts(value)
    return tuple(sorted({parse_framework(text) for text in texts}))


def _python(value: Any) -> str:
    text = str(value).strip()
    if _VERSION.fullmatch(text):
        text = f"=={text}" if text.count(".") > 1 else f"=={text}.*"
    wrong = f"{value!r} is no version of Python; write it like 3.11 or >=3.11"
    if not text:
        raise ValueError(wrong)
    return _specifiers(text, wrong)


def _labels(value: Any) -> tuple[str, ...]:
    pairs = list(value.items()) if isinstance(value, Mapping) else [parse_pair(text) for text in _texts(value)]
    labels: dict[str, str] = {}
    for name, wanted in pairs:
        if labels.setdefault(str(name), str(wanted)) != str(wanted):
            raise ValueError(f"{name} can't be both {labels[str(name)]} and {wanted}")
    return tuple(sorted(f"{name}={wanted}" for name, wanted in labels.items()))


def _one_of(choices: Sequence[str], what: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        text = str(value).strip()
        text = _ALSO.get(text.lower(), text)
        if text not in choices:
            near = next(iter(difflib.get_close_matches(text.lower(), choices, n=1)), "")
            hint = f"; did you mean {near}?" if near else ""
            raise ValueError(f"unknown {what} {value!r}: {_choice(choices)}{hint}")
        return text

    return read


def _choice(words: Sequence[str]) -> str:
    """'a, b or c'."""
    return f"{', '.join(words[:-1])} or {words[-1]}"


def _switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither True nor False")
    return value


OPTIONS: tuple[Option, ...] = (
    Option(flag="--accelerator", keyword="accelerator", field="accelerator", metavar="KIND",
           parse=_text(parse_accelerator), help="cuda, rocm or mps; cpu, or nothing, for any machine."),
    Option(flag="--devices", keyword="devices", field="devices", metavar="N", parse=_count,
           help="How many accelerators of that kind (default 1).", of_devices="counts accelerators"),
    Option(flag="--min-vram", keyword="min_vram", field="min_vram_bytes", metavar="SIZE", parse=_size,
           help="Memory of each device at least, like 40GB.", of_devices="is of devices"),
    Option(flag="--vram-share", keyword="vram_share", field="vram_share_bytes", metavar="SIZE", parse=_size,
           help="So much of one device, beside other jobs that say theirs.", of_devices="is a share of a device"),
    Option(flag="--device-name", keyword="device_names", field="device_names", metavar="GLOB", parse=_globs,
           help="Devices of this name, like 'A100*'; of several any fits.", repeats=True, of_devices="is of devices"),
    Option(flag="--min-capability", keyword="min_capability", field="min_capability", metavar="V", parse=_capability,
           help="CUDA compute capability at least, like 8.0.", of_devices="is of devices"),
    Option(flag="--min-driver", keyword="min_driver", field="min_driver", metavar="V", parse=_driver,
           help="Version of the devices' driver at least, like 535.104.", of_devices="is of devices"),
    Option(flag="--framework", keyword="frameworks", field="frameworks", metavar="NAME[SPEC]", parse=_frameworks,
           help="Works there, on the devices, like 'torch>=2.4'.", repeats=True),
    Option(flag="--python", keyword="python", field="python", metavar="SPEC", parse=_python,
           help="Version of Python for jobs, like 3.11 or '>=3.11'."),
    Option(flag="--ram", keyword="ram", field="ram_bytes", metavar="SIZE", parse=_size,
           help="RAM that it needs, kept from other jobs that say theirs."),
    Option(flag="--cpus", keyword="cpus", field="cpu_cores", metavar="N", parse=_cores,
           help="Cores that it needs, kept likewise."),
    Option(flag="--os", keyword="os", field="os", metavar="NAME", parse=_one_of(SYSTEMS, "system"),
           help="linux or darwin (macOS)."),
    Option(flag="--arch", keyword="arch", field="arch", metavar="NAME", parse=_one_of(ARCHITECTURES, "architecture"),
           help="x86_64, arm64 …"),
    Option(flag="--worker-label", keyword="worker_labels", field="labels", metavar="K=V", parse=_labels, repeats=True,
           help="On machines with this label (gpulayer join --label)."),
    Option(flag="--worker", keyword="worker", field="worker", metavar="NAME", parse=_text(parse_name),
           help="On this machine only."),
    Option(flag="--nodes", keyword="nodes", field="nodes", metavar="N", parse=_count,
           help="On so many machines at once, all or none."),
    Option(flag="--group-locality", keyword="group_locality", field="locality", metavar="HOW",
           parse=_one_of(LOCALITIES, "locality"),
           help="How near these are to each other: prefer, require, spread or none (default prefer)."),
    Option(flag="--bind-cpus", keyword="bind_cpus", field="bind_cpus", parse=_switch,
           help="On the cores next to its devices.", of_devices="is about cores next to devices"),
    Option(flag="--wait-for-worker", keyword="wait_for_worker", parse=_switch,
           help="Where no machine could run it, wait for one."),
)  # fmt: skip
"""Every option of placement, in the order in which help shows them."""

BY_KEYWORD = {option.keyword: option for option in OPTIONS}
_values = attrgetter(*BY_KEYWORD)


def known_keywords(function: str, given: Iterable[str], own: Iterable[str] = ()) -> None:
    """Raises TypeError, with the near one, for a keyword that is not of placement; `own`: others that it has."""
    for keyword in given:
        if keyword not in BY_KEYWORD:
            near = next(iter(difflib.get_close_matches(keyword, [*own, *BY_KEYWORD], n=1)), "")
            hint = f"; did you mean {near}?" if near else ""
            raise TypeError(f"{function}() got an unexpected keyword argument {keyword!r}{hint}")


def spelled_out(function: F) -> F:
    """Let a function that takes `**placement` show each keyword by name, to `help` and to who completes a line."""
    own = inspect.signature(function)
    kept = [each for each in own.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    kind = inspect.Parameter.KEYWORD_ONLY
    more = [inspect.Parameter(each.name, kind, default=each.default, annotation=each.type) for each in fields(Needs)]
    shown: Any = function
    shown.__signature__ = own.replace(parameters=[*kept, *more])
    return function


# ---------------------------------------------------------------- how they are called


def as_flag(keyword: str, value: object = None) -> str:
    """'--accelerator', '--accelerator cuda'."""
    return BY_KEYWORD[keyword].flag + ("" if value is None else f" {value}")


def as_keyword(keyword: str, value: object = None) -> str:
    """'accelerator', "accelerator='cuda'"."""
    return keyword + ("" if value is None else f"={value!r}")


Called: TypeAlias = "Callable[..., str]"


# ---------------------------------------------------------------- all of them


def requirements(given: Mapping[str, Any], called: Called = as_keyword) -> Requirements:
    """What a job needs, of options by their keywords: texts as they were typed, or values.

    Raises ValueError with one line that says which option, what of it, and what to write instead.
    """
    values = checked(given, called)
    return Requirements(**{BY_KEYWORD[name].field: value for name, value in values.items() if BY_KEYWORD[name].field})


@lru_cache(maxsize=256, typed=True)
def _remembered(*values: Any) -> Requirements:
    return requirements(dict(zip(BY_KEYWORD, values, strict=True)))


def checked(given: Mapping[str, Any], called: Called = as_keyword) -> dict[str, Any]:
    """The options that were given, each read and all of them fitting together; left out are those without a value."""
    values: dict[str, Any] = {}
    for option in OPTIONS:
        value = given.get(option.keyword)
        if _is_given(option, value):
            try:
                values[option.keyword] = option.parse(value)
            except (TypeError, ValueError) as error:
                raise ValueError(f"{called(option.keyword)}: {error}") from error
    wrong = next(_contradictions(values, called), None)
    if wrong is not None:
        raise ValueError(wrong)
    return values


def _is_given(option: Option, value: Any) -> bool:
    if value is None or value is False or (option.repeats and not isinstance(value, str) and not value):
        return False
    return not (option.keyword == "devices" and value == 0)  # as a program leaves it


def _contradictions(values: Mapping[str, Any], called: Called) -> Iterator[str]:
    """What can't be asked for together, in one line each."""
    kind = values.get("accelerator")
    if kind in (None, "cpu"):
        for option in OPTIONS:
            if option.of_devices and option.keyword in values:
                like = called("accelerator", "cuda")
                yield f"{called(option.keyword)} {option.of_devices}: name their kind too, like {like}"
    for keyword in ("min_capability", "min_driver"):
        if kind == "mps" and keyword in values:
            yield f"{called(keyword)}: mps devices have none; leave it out"
    if kind == "rocm" and "min_capability" in values:
        yield f"{called('min_capability')} is of cuda devices; name rocm ones by {called('device_names')}"
    if "vram_share" in values and values.get("devices", 1) > 1:
        yield f"{called('vram_share')} is of one device: it can't go with {called('devices', values['devices'])}"
    many = values.get("nodes", 1) > 1
    if many and "worker" in values:
        yield f"{called('worker')} names one machine: it can't go with {called('nodes', values['nodes'])}"
    if "group_locality" in values and not many:
        yield f"{called('group_locality')} is about several machines: say how many with {called('nodes', 2)}"
