"""Every reason why a machine has too few devices that a job could use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from gpulayer.protocol.types import Device, Framework, Reason
from gpulayer_server.scheduling import devicefit, figures
from gpulayer_server.scheduling.asked import Asked
from gpulayer_server.scheduling.candidate import Candidate
from gpulayer_server.scheduling.figures import JOIN, count, place, placed_name, short_name, size, sold_as
from gpulayer_server.scheduling.versions import known_numbers

Devices: TypeAlias = Sequence[Device]

#: Who makes devices of a kind: the problems of an inventory begin with that name.
_MAKERS = {"cuda": "NVIDIA", "rocm": "AMD", "mps": "Apple"}


@dataclass(frozen=True, kw_only=True)
class Check:
    """One constraint on each device."""

    words: str  # what is asked, as it stands behind 'with'
    fits: Callable[[Device], bool]
    reason: Callable[[Devices, Devices], Reason]  # of the devices that count, and of those among them that fit


def device_reasons(asks: Asked, worker: Candidate) -> list[Reason]:
    """Every constraint on devices that a machine can't meet.

    Constraints are looked at one by one on the devices that are not sick, or on all where these are too few; and then
    together: two cards, one large enough and the other new enough, are none that is both.
    """
    if devicefit.enough(asks, worker.inventory):
        return []
    of_kind = [device for device in worker.inventory.devices if device.kind == asks.kind]
    if not of_kind:
        return [_no_such_device(asks, worker)]
    reasons: list[Reason] = []
    pool = [device for device in of_kind if not device.sick]
    if len(pool) < asks.count:
        reasons.append(_too_few(asks, worker, len(pool), [device for device in of_kind if device.sick]))
        pool = of_kind
    least = min(asks.count, len(pool))
    together = pool
    met: list[Check] = []
    for check in checks(asks, worker):
        fitting = [device for device in pool if check.fits(device)]
        if len(fitting) < least:
            reasons.append(check.reason(pool, fitting))
        else:
            met.append(check)
            together = [device for device in together if device in fitting]
    if len(together) < least:
        reasons.append(_not_together(asks, worker, met, len(together)))
    return reasons


def checks(asks: Asked, worker: Candidate) -> list[Check]:
    """The constraints on each device that are asked for."""
    inventory = worker.inventory
    made: list[Check] = []
    if asks.names is not None:
        fits = partial(devicefit.named, asks)
        made.append(Check(words=f"a name like {_globs(asks)}", fits=fits, reason=partial(_name, asks, worker)))
    if asks.vram_bytes is not None:
        large = partial(devicefit.large, asks, inventory)
        made.append(Check(words=size(asks.vram_bytes), fits=large, reason=partial(_vram, asks, worker)))
    if asks.share_bytes is not None:
        fits = partial(devicefit.shareable, asks, inventory)
        made.append(Check(words=size(asks.share_bytes), fits=fits, reason=partial(_share, asks, worker)))
    if asks.capability is not None:
        words, fits = f"compute capability {asks.capability_text}", partial(devicefit.capable, asks)
        made.append(Check(words=words, fits=fits, reason=partial(_capability, asks, worker)))
    if asks.driver is not None:
        words, fits = f"driver {asks.driver_text}", partial(devicefit.driven, asks)
        made.append(Check(words=words, fits=fits, reason=partial(_driver, asks, worker)))
    for framework in devicefit.tried(asks, inventory):
        words, fits = f"a {framework.name} that works there", partial(devicefit.computes, framework)
        made.append(Check(words=words, fits=fits, reason=partial(_framework, asks, worker, framework)))
    return made


# ---------------------------------------------------------------- too few of them


def _no_such_device(asks: Asked, worker: Candidate) -> Reason:
    inventory = worker.inventory
    there = figures.tally(f"{device.kind} {short_name(device)}".rstrip() for device in inventory.devices)
    has = [f"only {there}"] if there else []
    has += inventory.problems or ([] if there else ["CPU only"])
    wanted = f"a {asks.kind} device" if asks.count == 1 else f"{asks.count} {asks.kind} devices"
    return Reason(
        worker=worker.name,
        code="device_kind",
        text=f"needs {_usable(asks)}, worker has 0 ({'; '.join(has)})",
        wanted=asks.kind,
        found=there or None,
        remedy=_mend_driver(asks, worker) or f"add a machine with {wanted}: {JOIN}",
    )


def _too_few(asks: Asked, worker: Candidate, healthy: int, sick: Devices) -> Reason:
    why = [f"{placed_name(device)} takes no work: {device.sick}" for device in sick] + _problems(asks, worker)
    ask_less = f"ask for {count(healthy, f'{asks.kind} device')}, which {worker.name} has"
    return Reason(
        worker=worker.name,
        code="device_count",
        text=f"needs {_usable(asks)}, worker has {healthy}" + (f" ({'; '.join(why)})" if why else ""),
        wanted=asks.count,
        found=healthy,
        remedy=_mend_devices(worker, sick) or _mend_driver(asks, worker) or ask_less,
    )


def _not_together(asks: Asked, worker: Candidate, met: Sequence[Check], found: int) -> Reason:
    words = " and ".join(check.words for check in met)
    return Reason(
        worker=worker.name,
        code="device_count",
        text=f"needs {_usable(asks)} with {words}, worker has {found} with all of that",
        wanted=asks.count,
        found=found,
        remedy=f"ask for less than {words} at once on {worker.name}",
    )


def _usable(asks: Asked) -> str:
    return count(asks.count, f"usable {asks.kind} device")


def _mend_devices(worker: Candidate, sick: Devices) -> str:
    """The step that brings sick devices back; '' for none."""
    return "; ".join(f"mend {place(device)} on {worker.name} ({device.sick})" for device in sick)


def _problems(asks: Asked, worker: Candidate) -> list[str]:
    """What went wrong on a machine, but with devices of other makers."""
    others = tuple(maker for kind, maker in _MAKERS.items() if kind != asks.kind)
    return [problem for problem in worker.inventory.problems if not problem.startswith(others)]


def _mend_driver(asks: Asked, worker: Candidate) -> str:
    problems = _problems(asks, worker)
    return f"mend the driver on {worker.name} ({problems[0]})" if problems else ""


# ---------------------------------------------------------------- each constraint


def _globs(asks: Asked) -> str:
    return " or ".join(repr(glob) for glob in asks.globs)


def _sick_ones(asks: Asked, worker: Candidate, pool: Devices, fits: Callable[[Device], bool]) -> Devices:
    """Devices that would fit if they were not sick."""
    others = [device for device in worker.inventory.devices if device.kind == asks.kind and device not in pool]
    return [device for device in others if fits(device)]


def _name(asks: Asked, worker: Candidate, pool: Devices, fitting: Devices) -> Reason:
    there = figures.tally(short_name(device) or place(device) for device in pool)
    many = f"{asks.count} devices" if asks.count > 1 else "a device"
    has = f"{len(fitting)} of {there}" if fitting else there
    sick = _sick_ones(asks, worker, pool, partial(devicefit.named, asks))
    return Reason(
        worker=worker.name,
        code="device_name",
        text=f"needs {many} named {_globs(asks)}, worker has {has}",
        wanted="|".join(asks.globs),
        found=there,
        remedy=_mend_devices(worker, sick) or f"ask for {there}, which {worker.name} has",
    )


def _vram(asks: Asked, worker: Candidate, pool: Devices, fitting: Devices) -> Reason:
    wanted = asks.vram_bytes or 0
    most, device = _next_largest(worker, pool, fitting)
    each = f" on each of {asks.count} devices" if asks.count > 1 else ""
    if most is None:
        has = f"the memory of {placed_name(device)} is not known"
    elif fitting:
        has = f"{len(fitting)} {'has' if len(fitting) == 1 else 'have'} it, the next has {_of(sold_as(most), device)}"
    else:
        has = f"the largest has {_of(sold_as(most), device)}"
    sick = _sick_ones(asks, worker, pool, partial(devicefit.large, asks, worker.inventory))
    ask_less = f"ask for {sold_as(most)}, which {worker.name} has" if most is not None else ""
    return Reason(
        worker=worker.name,
        code="vram",
        text=f"needs {size(wanted)}{each}, {has}",
        wanted=wanted,
        found=most,
        remedy=_mend_devices(worker, sick) or ask_less,
    )


def _share(asks: Asked, worker: Candidate, pool: Devices, fitting: Devices) -> Reason:
    wanted = asks.share_bytes or 0
    most, device = _next_largest(worker, pool, fitting)
    unknown = f"the memory of {placed_name(device)} is not known"
    sick = _sick_ones(asks, worker, pool, partial(devicefit.shareable, asks, worker.inventory))
    ask_less = f"ask for a share of {size(most)}, which {worker.name} has" if most is not None else ""
    has = f"the largest has {_of(size(most), device)}" if most is not None else unknown
    return Reason(
        worker=worker.name,
        code="vram_share",
        text=f"needs a share of {size(wanted)} of one device, {has}",
        wanted=wanted,
        found=most,
        remedy=_mend_devices(worker, sick) or ask_less,
    )


def _next_largest(worker: Candidate, pool: Devices, fitting: Devices) -> tuple[int | None, Device]:
    """Of the devices that don't fit, the largest one; those of unknown memory last."""
    others = [(figures.memory(device, worker.inventory), device) for device in pool if device not in fitting]
    return max(others, key=lambda each: -1 if each[0] is None else each[0])


def _of(figure: str, device: Device) -> str:
    name = short_name(device)
    return f"{figure} ({name})" if name else f"{figure} ({place(device)})"


def _capability(asks: Asked, worker: Candidate, pool: Devices, fitting: Devices) -> Reason:
    best = _newest(pool, fitting, "capability")
    if not best.capability:
        has = f"that of {placed_name(best)} is not known"
    elif fitting:
        has = f"{len(fitting)} of {asks.count} has it, the next has {_of(best.capability, best)}"
    else:
        has = f"the highest is {_of(best.capability, best)}"
    sick = _sick_ones(asks, worker, pool, partial(devicefit.capable, asks))
    ask_less = f"ask for {best.capability}, which {worker.name} has" if best.capability else ""
    return Reason(
        worker=worker.name,
        code="capability",
        text=f"needs compute capability {asks.capability_text}, {has}",
        wanted=asks.capability_text,
        found=best.capability or None,
        remedy=_mend_devices(worker, sick) or ask_less,
    )


def _driver(asks: Asked, worker: Candidate, pool: Devices, fitting: Devices) -> Reason:
    best = _newest(pool, fitting, "driver")
    has = f"driver {best.driver} is installed" if best.driver else f"that of {placed_name(best)} is not known"
    return Reason(
        worker=worker.name,
        code="driver",
        text=f"needs driver {asks.driver_text}, {has}",
        wanted=asks.driver_text,
        found=best.driver or None,
        remedy=f"install driver {asks.driver_text} or newer on {worker.name}",
    )


def _newest(pool: Devices, fitting: Devices, field: str) -> Device:
    """Of the devices that don't fit, the one with the highest version in a field."""
    others = [device for device in pool if device not in fitting]
    return max(others, key=lambda device: known_numbers(getattr(device, field)) or ())


def _framework(asks: Asked, worker: Candidate, framework: Framework, pool: Devices, fitting: Devices) -> Reason:
    others = [place(device) for device in pool if device not in fitting]
    why = framework.problems.get(asks.kind or "", "")
    works = f"works on {len(fitting)} of {count(len(pool), f'{asks.kind} device')} of this worker"
    return Reason(
        worker=worker.name,
        code="framework_device",
        text=f"{framework.name} {works}, not on {', '.join(others)}" + (f": {why}" if why else ""),
        wanted=asks.count,
        found=len(fitting),
        remedy=f"mend {', '.join(others)} on {worker.name}" + (f" ({why})" if why else ""),
    )
