"""What came of probes, target by target ('cpu' or a device's UUID), and the words in which a worker tells it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import structs

from gpulayer.protocol.base import Struct
from gpulayer.protocol.machines import Device, Framework

CPU = "cpu"
OUT_OF_MEMORY = "out of memory"  # how the scripts begin to say so
NO_CPU = {"cupy": "cupy computes on CUDA and ROCm devices only"}
GENERAL = ""  # the target of what holds for a framework as a whole
_RETRY_S = 60.0
_RETRY_LONGEST_S = 3600.0


class Outcome(Struct, frozen=True, kw_only=True):
    """Of one target."""

    why: str = ""  # why it can't be used; '' where the computation gave what it should
    lasting: bool = True  # until what it depends on changes; else it is tried again
    driver: str = ""  # the device's, and what it supports; '' of the CPU
    at: float = 0.0  # when, by the machine's clock
    tries: int = 1

    def due(self, now: float) -> bool:
        """Whether to try again, as with what failed once and may go well the next time; ever more seldom."""
        wait_s = min(_RETRY_LONGEST_S, _RETRY_S * 2 ** min(self.tries - 1, 10))
        return bool(self.why) and not self.lasting and not 0 <= now - self.at < wait_s  # a clock may be set back


class Results(Struct, frozen=True, kw_only=True):
    """All that is known of a framework; `key` digests what every outcome depends on."""

    key: str
    built_for: str = ""
    outcomes: dict[str, Outcome] = {}
    worked: tuple[str, ...] = ()  # kinds of devices on which it has worked at any time
    before: dict[str, Outcome] = {}  # of another key or driver: holds where a device can't be computed on now

    def under(self, key: str, drivers: Mapping[str, str]) -> Results:
        """What of this holds under a key, and with these drivers (by UUID); the rest is of before."""
        past = {
            target: each
            for target, each in self.outcomes.items()
            if key != self.key or (target in drivers and each.driver != drivers[target])
        }
        if not past and key == self.key:
            return self
        return structs.replace(
            self,
            key=key,
            outcomes={target: each for target, each in self.outcomes.items() if target not in past},
            before={target: each for target, each in (self.before | past).items() if target != GENERAL},
            worked=self.worked if key == self.key else (),
        )

    def renewed(
        self, new: Mapping[str, Outcome], built_for: str, *, asked: Sequence[str], kinds: Mapping[str, str]
    ) -> Results:
        """With what a new probe of some targets found; it counts how often one failed in a row.

        `kinds` are those of the devices, by UUID.
        """
        outcomes = {target: each for target, each in self.outcomes.items() if target not in (*asked, GENERAL)}
        for target, each in new.items():
            before = self.outcomes.get(target)
            again = before is not None and before.why and each.why
            outcomes[target] = structs.replace(each, tries=before.tries + 1) if before is not None and again else each
        now = [kinds[target] for target, each in new.items() if target in kinds and not each.why]
        return structs.replace(
            self,
            built_for=built_for or self.built_for,
            outcomes=outcomes,
            worked=tuple(dict.fromkeys((*self.worked, *now))),
        )

    @property
    def general(self) -> str:
        """Why nothing can be done with the framework at all; '' where something can."""
        return self.outcomes.get(GENERAL, Outcome()).why

    def due(self, targets: Sequence[str], now: float) -> list[str]:
        """Those to compute on now: not known yet, or to be tried again."""
        if self.general:
            return list(targets) if self.outcomes[GENERAL].due(now) else []
        return [each for each in targets if each not in self.outcomes or self.outcomes[each].due(now)]

    def unknown(self, targets: Sequence[str]) -> bool:
        """Whether nothing at all is known of one of these."""
        return not self.general and any(each not in self.outcomes and each not in self.before for each in targets)

    def without(self, target: str) -> Results:
        """A target is to be probed anew; that it worked holds until then: a job may keep it busy for days."""
        past = self.outcomes.get(target)
        good = {target: past} if past is not None and not past.why else {}
        return structs.replace(
            self,
            outcomes={name: each for name, each in self.outcomes.items() if name not in (target, GENERAL)},
            before={name: each for name, each in self.before.items() if name != target or not each.why} | good,
        )


def told(name: str, version: str, results: Results, devices: Sequence[Device]) -> Framework:
    """A framework as the worker tells it: what works, and per kind why the rest does not."""
    if results.general:
        return Framework(name=name, version=version, built_for=results.built_for, problems={GENERAL: results.general})
    outcomes = results.before | results.outcomes
    cpu = outcomes.get(CPU)
    works: list[str] = [CPU] if cpu is not None and not cpu.why else []
    problems: dict[str, str] = {CPU: cpu.why} if cpu is not None and cpu.why else {}
    if name in NO_CPU:
        problems[CPU] = NO_CPU[name]
    good = [device for device in devices if device.uuid in outcomes and not outcomes[device.uuid].why]
    for kind in dict.fromkeys(device.kind for device in devices):
        if any(device.kind == kind for device in good):
            works.append(kind)
        bad = [device for device in devices if device.kind == kind and outcomes.get(device.uuid, _GOOD).why]
        if bad:
            problems[kind] = _joined(bad, outcomes, of=sum(device.kind == kind for device in devices))
    return Framework(
        name=name,
        version=version,
        built_for=results.built_for,
        works=tuple(works),
        devices=tuple(device.uuid for device in good),
        problems=problems,
    )


_GOOD = Outcome()


def _joined(bad: Sequence[Device], outcomes: Mapping[str, Outcome], *, of: int) -> str:
    """One reason for all devices of a kind, or each with those that it holds for."""
    whys = {why: [device for device in bad if outcomes[device.uuid].why == why] for why in _whys(bad, outcomes)}
    if len(whys) == 1 and len(bad) == of:
        return next(iter(whys))
    return "; ".join(
        f"{', '.join(f'{device.kind}:{device.index}' for device in devices)}: {why}" for why, devices in whys.items()
    )


def _whys(bad: Sequence[Device], outcomes: Mapping[str, Outcome]) -> list[str]:
    return list(dict.fromkeys(outcomes[device.uuid].why for device in bad))
