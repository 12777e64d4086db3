"""Clients that call functions: they open maps, bring calls, ask again, cancel, and let runners go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from gpulayer.protocol.calls import CallsSpec, FunctionSpec, MapSpec, MapView
from gpulayer.protocol.types import JobSpec, JobView, Problem, Requirements, State
from gpulayer_server.core.calls.views import stored_map
from gpulayer_server.core.events import ArgsCame, CallsEndWanted, CancelWanted, Event, MapCancelWanted, MapOpened
from tests.simulation.controlplane import ControlPlane, Reply
from tests.simulation.simulator import Host, Process, Violation
from tests.simulation.truth import Truth

_PATIENCE_S = 8.0
_PART = 7  # calls that are brought at once


@dataclass(kw_only=True)
class Wish:
    """A map that a client wants, under its key."""

    key: str
    job: JobSpec
    map: MapSpec
    args: tuple[bytes, ...]
    view: MapView | None = None
    taken: int = 0
    tries: int = 0
    refused: bool = False
    leaves_at: int | None = None  # having sent so many calls the client goes away
    back_after_s: float | None = None  # for so long; None: for good
    stays: bool = False  # it does not go away, only its next calls take so long to make
    gone: bool = False
    making: bool = False  # its next calls

    @property
    def over(self) -> bool:
        """Whether it has ended, or can't be, and the client knows."""
        return self.refused or (self.view is not None and self.view.ended_at is not None)

    @property
    def open(self) -> bool:
        """Whether it is not there yet, or not all of its calls are."""
        return not (self.over or self.gone) and (self.view is None or self.taken < len(self.args))

    def part(self, first: int) -> tuple[bytes, ...]:
        """The next calls, as many as are brought at once."""
        end = first + _PART
        return self.args[first : end if self.leaves_at is None else min(end, self.leaves_at)]


class Caller(Process):
    """One person's program."""

    def __init__(self, host: Host, control_plane: ControlPlane, truth: Truth, owner: str):
        super().__init__(host)
        self.control_plane = control_plane
        self.truth = truth
        self.owner = owner
        self.wishes: dict[str, Wish] = {}

    # ---------------------------------------------------------------- maps

    def call(self, key: str, job: JobSpec, of: MapSpec, args: tuple[bytes, ...], **leaving: Any) -> None:
        """Want a map, and ask until all of its calls are there; `leaving`: whether it goes away before, see `Wish`."""
        self.wishes[key] = Wish(key=key, job=job, map=of, args=args, **leaving)
        self.ask(key)

    def ask(self, key: str) -> None:
        """Open it, once more with the same key, and bring its calls."""
        wish = self.wishes[key]
        wish.tries += 1
        self.request(self._open, wish)
        self.after(_PATIENCE_S, self._impatient, wish, wish.tries)

    def _impatient(self, wish: Wish, tries: int) -> None:
        """Until it knows that all calls are taken: then those who run them owe it the rest."""
        if wish.tries == tries and wish.open and not wish.making:
            self.ask(wish.key)

    def request(self, call: Callable[..., None], *args: object) -> None:
        """Something arrives at the control plane, if there is one."""
        self.control_plane.after(0.02 * self.sim.random.random(), self.arrive, call, args)

    def arrive(self, call: Callable[..., None], args: tuple[object, ...]) -> None:
        """A request is at the control plane."""
        if self.control_plane.up:
            call(*args)

    def _open(self, wish: Wish) -> None:
        plane = self.control_plane
        if (self.owner, wish.key) not in plane.plane.calls.keys:
            state = plane.store.maps.by_key(self.owner, wish.key)
            if state is not None and state.ended_at is not None:
                self._opened(wish, stored_map(state))
                return
        first = wish.part(0)
        self.sim.log(self.owner, f"opens {wish.key}")

        def make(n: int) -> Event:
            return MapOpened(
                request=n,
                owner=self.owner,
                key=wish.key,
                payload_hash=_hash(wish.job),
                spec=wish.job,
                map=wish.map,
                args=first,
                last=len(first) == len(wish.args),
            )

        self._ask(make, lambda answer: self._opened(wish, answer))

    def _ask(self, make: Callable[[int], Event], reply: Reply) -> None:
        self.control_plane.request(make, reply)

    def _opened(self, wish: Wish, answer: MapView | JobView | Problem | None) -> None:
        if isinstance(answer, MapView):
            self.truth.calls.answered(self.owner, wish.key, answer)
            self.after(0.02 * self.sim.random.random(), self._know, wish, answer)
        elif not isinstance(answer, Problem) or answer.code not in ("store_failed", "object_gone"):
            raise Violation(f"the opening of {wish.key} is answered by {answer}")
        elif answer.code == "object_gone":
            wish.refused = True

    def _know(self, wish: Wish, view: MapView) -> None:
        wish.view = view
        wish.taken = max(wish.taken, view.taken)
        if wish.leaves_at is not None and wish.taken >= wish.leaves_at and wish.open:
            self._leave(wish)
        elif not (wish.over or wish.gone or wish.making) and wish.taken < len(wish.args):
            self.request(self._bring, wish, wish.taken)

    def _leave(self, wish: Wish) -> None:
        """The program ends, or its net does; it may be back later. Or only its next calls are not there yet."""
        wish.gone, wish.making, wish.leaves_at = not wish.stays, wish.stays, None
        self.sim.log(self.owner, f"{'has nothing yet of' if wish.stays else 'leaves'} {wish.key}")
        if wish.view is not None and wish.gone:
            self.truth.calls.left(wish.view.id)
        if wish.back_after_s is not None:
            self.after(wish.back_after_s, self.come_back, wish.key)

    def come_back(self, key: str) -> None:
        """It goes on, where its map did not end."""
        self.wishes[key].gone = self.wishes[key].making = False
        self.sim.log(self.owner, f"is back with {key}")
        self.ask(key)

    def _bring(self, wish: Wish, first: int) -> None:
        if wish.view is None:
            return
        name, part = wish.view.id, wish.part(first)
        last = first + len(part) == len(wish.args)
        self._ask(
            lambda n: ArgsCame(request=n, map=name, first=first, args=part, last=last),
            lambda answer: self._brought(wish, answer),
        )

    def _brought(self, wish: Wish, answer: MapView | JobView | Problem | None) -> None:
        if isinstance(answer, MapView):
            self.truth.calls.told(answer)
            self.after(0.02 * self.sim.random.random(), self._know, wish, answer)
        elif isinstance(answer, Problem) and answer.code == "args_missing":
            raise Violation(f"calls of {wish.key} were taken, and are not there: {answer}")

    def bring_again(self, key: str) -> None:
        """Bring the first calls of a map once more: those that are here are passed over."""
        self.request(self._bring, self.wishes[key], 0)

    # ---------------------------------------------------------------- other wishes

    def cancel(self, key: str) -> None:
        """Wish the end of a map, if its name is known."""
        wish = self.wishes.get(key)
        if wish is not None and wish.view is not None:
            name = wish.view.id
            self.sim.log(self.owner, f"cancels {name}")
            self.request(self._ask, lambda n: MapCancelWanted(request=n, map=name), self._cancelled)

    def _cancelled(self, answer: MapView | JobView | Problem | None) -> None:
        if isinstance(answer, MapView):
            self.truth.calls.told(answer)
            if answer.ended_at is None:
                raise Violation(f"a cancel was answered by {answer}")

    def cancel_job(self, job: str, *, give_up: bool = False) -> None:
        """Wish the end of a function's runners, with all that they do."""
        if give_up:
            self.truth.given_up.add(job)
        self.request(self._ask, lambda n: CancelWanted(request=n, job=job, give_up=give_up), lambda _: None)

    def let_go(self, job: str) -> None:
        """Wish the end of a function's runners, once they have nothing to do."""
        self.request(self._ask, lambda n: CallsEndWanted(request=n, job=job), lambda _: None)

    def urge(self, *, patient: bool) -> None:
        """All is to come to its end: let runners go, give up what lives on a dead machine, later also what is much."""
        for job in self.jobs():
            self.let_go(job)
        for job in self.unreachable():
            if self.sim.random.random() < 0.1:
                self.cancel_job(job, give_up=True)
        for key in [] if patient else self.wishes:
            self.cancel(key)

    def jobs(self) -> list[str]:
        """The jobs of its maps, as far as it knows them."""
        return list(dict.fromkeys(wish.view.job for wish in self.wishes.values() if wish.view is not None))

    def unreachable(self) -> list[str]:
        """The jobs of which a runner is told to be out of reach."""
        mine = set(self.jobs())
        views = self.truth.views.values()
        return sorted({view.id for view in views if view.id in mine and view.state is State.UNREACHABLE})


def attended(callers: Sequence[Caller]) -> frozenset[str]:
    """Maps whose clients have more to send, and are connected to the control plane."""
    names: set[str] = set()
    for caller in callers:
        calls = caller.control_plane.plane.calls
        there = [wish for wish in caller.wishes.values() if not (wish.over or wish.gone)]
        for name in [calls.keys.get((caller.owner, wish.key), "") for wish in there]:
            if name in calls.incomplete:
                names.add(name)
                caller.truth.calls.came_back(name)
    return frozenset(names)


def _hash(job: JobSpec) -> str:
    return repr((job.calls, job.requirements, job.priority))


@dataclass(kw_only=True)
class Maps:
    """How maps are drawn: one of each."""

    count: int = 0
    functions: int = 2
    calls: tuple[int, ...] = (0, 1, 1, 2, 9, 30)
    seconds: tuple[float, ...] = (0.001, 0.01, 0.3, 2.0, 15.0)
    deeds: float = 0.1  # of calls, those that do not simply succeed
    devices: tuple[int, ...] = (0, 0, 0, 1)
    stateful: float = 0.1
    idle_timeout_s: tuple[float, ...] = (1800.0, 1800.0, 10.0)

    def draw(self, rng: Random, key: str) -> tuple[JobSpec, MapSpec, tuple[bytes, ...]]:
        """A map: its function, how its calls are run, and these."""
        number = rng.randrange(self.functions)
        shape = Random(number)  # the same function is the same job
        stateful = shape.random() < self.stateful
        devices = shape.choice(self.devices)
        job = JobSpec(
            calls=CallsSpec(
                function=FunctionSpec(name=f"f{number}", qualname=f"f{number}"),
                stateful=stateful,
                instance=f"i{number}" if stateful else "",
                idle_timeout_s=shape.choice(self.idle_timeout_s),
                max_runners=shape.choice((None, None, 1, 2)),
            ),
            requirements=Requirements(accelerator="cuda" if devices else None, devices=devices),
            priority=shape.choice((0, 0, 0, 5)),
        )
        count, seconds = rng.choice(self.calls), rng.choice(self.seconds)
        of = MapSpec(
            total=count if rng.random() < 0.3 else None,
            single=count == 1 and rng.random() < 0.7,
            retries=rng.choice((0, 0, 2)),
            backoff_s=rng.choice((0.1, 3.0)),
            return_exceptions=rng.random() < 0.6,
        )
        args = [f"{key}:{n}:{seconds * rng.uniform(0.1, 2):.4f}:{self._deed(rng)}".encode() for n in range(count)]
        return job, of, tuple(args)

    def _deed(self, rng: Random) -> str:
        if rng.random() < self.deeds:
            return rng.choice(("raise", "print", "die once", "die once", "die"))
        return "ok"


def draw_maps(rng: Random) -> Maps:
    """How many maps a world has, and of what kind: often none."""
    if rng.random() < 0.6:
        return Maps()
    return Maps(
        count=rng.randint(1, 12),
        functions=rng.randint(1, 3),
        calls=rng.choice(((0, 1, 1, 2, 9, 30), (1,), (20, 60), (3, 5))),
        seconds=rng.choice(((0.001, 0.01, 0.3, 2.0, 15.0), (0.01,), (5.0, 30.0))),
        deeds=rng.choice((0.0, 0.1, 0.4)),
        devices=rng.choice(((0,), (0, 0, 0, 1))),
        stateful=rng.choice((0.0, 0.3)),
    )


def draw_leaving(rng: Random, count: int) -> dict[str, Any]:
    """Whether a client goes away before it has sent all of so many calls, and comes back. Most do not."""
    if count < 2 or rng.random() < 0.5:
        return {}
    back_after_s = rng.choice((None, 3.0, 20.0, 60.0))
    return {"leaves_at": rng.randrange(count), "back_after_s": back_after_s, "stays": back_after_s == 60.0}


def draw_faults(rng: Random) -> dict[str, float]:
    """What befalls maps and runners: the mean seconds between two of a kind."""
    kinds = {"cancel_map": 15.0, "call_again": 10.0, "let_runners_go": 30.0, "cancel_runners": 60.0}
    return {kind: mean * rng.choice((0.4, 1.0, 2.5)) for kind, mean in kinds.items() if rng.random() < 0.5}
