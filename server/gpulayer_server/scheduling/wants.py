"""Sets of equal requirements, shapes of equal machines, and which of them fit: asked once for each pair."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any, Generic

from gpulayer.protocol.types import Device, Inventory, Requirements, Sample
from gpulayer_server.scheduling import match
from gpulayer_server.scheduling.candidate import Candidate, Each

#: What lines need: a slot; memory, cores or a framework; a share of a device; many machines; a session. Else: so many
#: devices, or that worker.
SLOT, HOST, SHARE, MACHINES, SESSION = "slot", "host", "share", "machines", "session"

#: Minus the free slots, the name, the id: the roomiest comes first.
Entry = tuple[int, str, str]


class Shape(Generic[Each]):
    """Machines that `match.unmet` treats alike, but for their names. `there`: those that are connected, by id."""

    def __init__(self, key: Hashable, devices: int):
        self.key = key
        self.devices = devices
        self.members: dict[str, Each] = {}
        self.there: dict[str, Each] = {}
        self.open: dict[int, list[Entry]] = {}  # with a free slot, by the number of free devices
        self.sharing: list[tuple[int, str]] = []  # with a free slot: most bytes left on a device in shared use, id
        self.fitting: set[Wants[Each]] = (
            set()
        )  # the room's sets of requirements that it could meet, or that name a worker
        self.demands: set[Hashable] = set()  # of these
        self.asked = 0  # so many of them were looked at for that


class Wants(Generic[Each]):
    """A set of requirements, and which shapes could meet it."""

    def __init__(self, requirements: Requirements):
        self.requirements = requirements
        self.pinned = requirements.worker
        self.kind = requirements.device_kind
        self.count = requirements.device_count
        self.share_bytes = requirements.vram_share_bytes if self.kind else None
        self.nodes = requirements.nodes
        self.ram_bytes = requirements.ram_bytes or 0
        self.cpu_cores = requirements.cpu_cores or 0.0
        declares = requirements.ram_bytes is not None or requirements.cpu_cores is not None
        self.whole = self.count > 0 and self.share_bytes is None  # takes devices for itself
        self.light = self.kind is None and not declares and not requirements.frameworks  # needs a slot, nothing else
        self.plain = self.light and self.nodes == 1  # may wait for a slot, if it is a command
        self.big = self.nodes > 1 or self.count > 1 or declares  # small jobs could keep it waiting for ever
        self.shapes: list[Shape[Each]] = []  # those that fit and of which somebody is there: `Room.shapes`
        self.version = -1  # of the room, when they were listed
        self.possible = -1  # the room's `changes`, when it was found that enough of those who are there could take it
        self.demand = self._demand()
        self.not_before = 0  # many machines are too few until somewhere came something free so many times: `Room.frees`
        self._fits: dict[Shape[Each], bool] = {}

    def _demand(self) -> Hashable:
        """What kind of thing it needs: a worker that has nothing of the kind free need not be asked for it."""
        if self.pinned is not None:
            return (self.pinned,)
        if self.nodes > 1:
            return MACHINES
        if self.share_bytes is not None:
            return SHARE
        return self.count or (SLOT if self.light else HOST)

    def fits(self, shape: Shape[Each], worker: Each) -> bool:
        """Whether machines of a shape, such as `worker`, could take it, however busy they are."""
        if self.pinned is not None and self.pinned != worker.name:
            return False
        found = self._fits.get(shape)
        if found is None:
            found = self._fits[shape] = match.fits(self.requirements, worker)
        return found

    def forget(self, shape: Shape[Each]) -> None:
        """A shape of which no machine is left."""
        self._fits.pop(shape, None)


class Beside(Generic[Each]):
    """What a reservation leaves of a worker to everybody else: a worker with less."""

    __slots__ = ("_requirements", "_uuids", "worker")

    def __init__(self, worker: Each, requirements: Requirements, uuids: frozenset[str]):
        """`uuids`: of the devices that are reserved, free or not."""
        self.worker = worker
        self._requirements = requirements
        self._uuids = uuids

    @property
    def id(self) -> str:
        """The worker's."""
        return self.worker.id

    @property
    def name(self) -> str:
        """The worker's."""
        return self.worker.name

    @property
    def inventory(self) -> Inventory:
        """The worker's."""
        return self.worker.inventory

    @property
    def slots(self) -> int:
        """The worker's."""
        return self.worker.slots

    @property
    def reachable(self) -> bool:
        """The worker's."""
        return self.worker.reachable

    @property
    def full(self) -> str:
        """The worker's."""
        return self.worker.full

    @property
    def sample(self) -> Sample | None:
        """The worker's."""
        return self.worker.sample

    @property
    def room_ahead(self) -> int:
        """Nobody waits for the slot that is kept."""
        return 0

    @property
    def slots_free(self) -> int:
        """One is kept."""
        return max(0, self.worker.slots_free - 1)

    @property
    def devices_free(self) -> list[Device]:
        """Without those that are kept."""
        return [device for device in self.worker.devices_free if device.uuid not in self._uuids]

    @property
    def vram_left(self) -> Mapping[str, int]:
        """Nobody else begins to share a device that is kept."""
        return {uuid: left for uuid, left in self.worker.vram_left.items() if uuid not in self._uuids}

    @property
    def ram_left_bytes(self) -> int:
        """Without what is kept."""
        return self.worker.ram_left_bytes - (self._requirements.ram_bytes or 0)

    @property
    def cpu_left(self) -> float:
        """Without what is kept."""
        return self.worker.cpu_left - (self._requirements.cpu_cores or 0.0)


class Line:
    """A class of the queue: one owner's tasks that ask for the same, or that run in the same session."""

    __slots__ = ("gone", "owner", "patient", "session", "stuck", "wants")

    def __init__(
        self,
        owner: str,
        *,
        wants: Wants[Any] | None = None,
        session: tuple[str, str] | None = None,
        patient: bool = False,
    ):
        """`session`: owner and name, then `wants` is None; `patient`: none of it is rejected."""
        self.owner = owner
        self.wants = wants
        self.session = session
        self.patient = patient
        self.stuck: tuple[str, float] | None = None  # its first task, and since when that was seen to wait
        self.gone = False  # another line stands for the same now


def owner_of(line: Line) -> str:
    """Whose line it is."""
    return line.owner


def demand_of(line: Line) -> Hashable:
    """What kind of thing it needs, or that it runs in a session."""
    return SESSION if line.wants is None else line.wants.demand


def demands(worker: Candidate) -> Iterator[Hashable]:
    """What a worker could be asked for, by what of it is free."""
    yield from (SESSION, MACHINES, SLOT, (worker.name,))
    if worker.slots_free > 0:
        yield HOST
        if worker.inventory.devices:
            yield SHARE
            yield from range(1, len(worker.devices_free) + 1)


def varied(line: Line) -> bool:
    """Whether what its tasks ask for may be unlike: cells of one session may."""
    return line.session is not None
