"""What a worker's machine holds: its disk, its kernels, and the programs in them. They outlive the agent."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from gpulayer.protocol.messages import Assign
from gpulayer.protocol.records import Kind, encode, encode_json
from gpulayer.protocol.types import Device, DeviceSample, Inventory, JobSpec, Sample
from gpulayer.protocol.types import Process as OnDevice
from tests.simulation.simulator import Host, Process, Violation

if TYPE_CHECKING:
    from tests.simulation.truth import Truth

#: Where a kernel's owner is told of its end, and of the growth of a spool.
Told = Callable[[], None]


@dataclass(kw_only=True)
class Spool:
    """An attempt's output: whole records only. `reply`: the cell's last word, once it is in."""

    data: bytearray = field(default_factory=bytearray)
    trimmed: int = 0  # bytes before this are let go of
    reply: dict[str, Any] | None = None

    def read(self, offset: int, size: int) -> bytes:
        """Bytes that must still be there."""
        if offset < self.trimmed:
            raise Violation(f"spool: byte {offset} is wanted again, {self.trimmed} bytes were let go of")
        if offset + size > len(self.data):
            raise Violation(f"spool: bytes to {offset + size} are wanted, there are {len(self.data)}")
        return bytes(self.data[offset : offset + size])


@dataclass(frozen=True, kw_only=True)
class Plot:
    """What a program will do. `portions`: what it writes, each after a pause."""

    portions: tuple[tuple[float, bytes], ...]
    reply: dict[str, Any] | None  # None: its kernel dies at the end
    heeds: bool  # ends when it is interrupted
    heed_s: float


def plot(rng: random.Random, attempt: str, spec: JobSpec, *, large: float, failing: float) -> Plot:
    """A program for an attempt. A cell's code, or a command's words, are 'seconds', perhaps with 'die' or 'quiet'.

    `large`: of what it writes, the part that is larger than a frame; `failing`: how probably it raises in the end.
    """
    words = spec.cell.code.split() if spec.cell is not None else list(spec.command.argv if spec.command else ())
    seconds = float(words[0])
    count = rng.randint(1, 6)
    first_s = 0.0 if rng.random() < 0.8 else 0.5 * rng.random()
    portions: list[tuple[float, bytes]] = [(first_s, _records(rng, attempt, large))]
    for _ in range(count):
        portions.append((2 * seconds * rng.random() / count, _records(rng, attempt, large)))
    if "quiet" in words:
        portions = [(2 * seconds * rng.random(), b"")]
    reply: dict[str, Any] | None = {"status": "ok"}
    if "die" in words:
        reply = None
    elif rng.random() < failing:
        reply = {"status": "error", "ename": "ValueError", "evalue": attempt}
    return Plot(portions=tuple(portions), reply=reply, heeds=rng.random() < 0.7, heed_s=rng.random())


def _records(rng: random.Random, attempt: str, large: float) -> bytes:
    chance = rng.random()
    if chance < large:  # than a frame, or seldom than the window
        return encode(Kind.TEXT, b"\x01" + rng.randbytes(8) * (600_000 if chance < 0.03 * large else 80_000))
    text = f"{attempt} {chance} ".encode()
    return b"".join(encode(Kind.TEXT, b"\x01" + text * rng.randint(1, 20)) for _ in range(rng.randint(1, 3)))


class Program(Process):
    """A cell that runs in a kernel, or a command, whose kernel is its process. It writes into its attempt's spool."""

    def __init__(self, kernel: Kernel, attempt: str, index: int, spec: JobSpec, spool: Spool, grew: Told):
        super().__init__(kernel.machine)
        self.kernel = kernel
        self.attempt = attempt
        self.index = index  # of its task
        self.spec = spec
        self.spool = spool
        self.live = True
        self.began_at = self.sim.now
        self._grew = grew
        machine = kernel.machine
        self._plot = plot(self.sim.random, attempt, spec, large=machine.large_output, failing=machine.failing_programs)
        self._next = 0
        self._heeding = False
        self._plan()

    def _plan(self) -> None:
        if self._next < len(self._plot.portions):
            self.after(self._plot.portions[self._next][0], self._write)
        elif self._plot.reply is None:
            self.kernel.die()
        else:
            self._reply(self._plot.reply)

    def _write(self) -> None:
        self.spool.data += self._plot.portions[self._next][1]
        self._next += 1
        if self.spool.data:
            self._grew()
        self._plan()

    def _reply(self, reply: dict[str, Any]) -> None:
        if not self.live:
            return
        if self.spec.command is not None:  # its exit record
            self.spool.reply = reply
            self.kernel.die()
            return
        self.spool.data += encode_json(Kind.REPLY, reply) + encode(Kind.KERNEL, b"\x00")
        self.spool.reply = reply
        self.stop()
        self._grew()

    def interrupt(self) -> None:
        """SIGINT."""
        if self.live and self._plot.heeds and not self._heeding:
            self._heeding = True
            self.end_life()
            reply = {"status": "error", "ename": "KeyboardInterrupt", "evalue": ""}
            self.after(self._plot.heed_s, self._reply, reply)

    def stop(self) -> None:
        """It runs no more."""
        self.live = False
        self.end_life()


class Kernel:
    """A kernel process. It runs an attempt at most once, however often it is sent."""

    def __init__(self, machine: Machine, owner: str, session: str | None, assign: Assign):
        """For the attempt of an assignment, or the session that its cell opens."""
        self.machine = machine
        self.owner = owner
        self.session = session
        self.devices = assign.devices
        self.asked = assign.spec.requirements
        self.alive = True
        self.killed_for = ""  # the attempt that its end was to end
        self.died: list[Told] = []  # the agent's: who waits for its end
        self.program: Program | None = None
        self.number = machine.next_kernel()
        self._ran: set[str] = set()

    def execute(self, attempt: str, index: int, spec: JobSpec) -> None:
        """Run a cell, or a command."""
        if attempt in self._ran or not self.alive:
            return
        self._ran.add(attempt)
        if self.program is not None and self.program.live:
            raise Violation(f"{attempt} is sent to a kernel that still runs {self.program.attempt}")
        spool = self.machine.spools[attempt]
        self.program = Program(self, attempt, index, spec, spool, lambda: self.machine.grew(attempt))
        self.machine.truth.began(self.machine, self.program)

    def interrupt(self) -> None:
        """SIGINT."""
        if self.program is not None:
            self.program.interrupt()

    def die(self) -> None:
        """By itself, or because somebody ends it; harmless when repeated."""
        if not self.alive:
            return
        self.alive = False
        self.machine.sim.log(self.machine.name, f"kernel of {self.owner} ends")
        self.machine.kernels.remove(self)
        if self.program is not None:
            self.program.stop()
        told, self.died = self.died, []
        for tell in told:
            tell()


class Machine(Host):
    """A host with a disk and kernels. `records`, `spools` and the notes are files: they outlive agents."""

    large_output = failing_programs = 0.0  # see `plot`
    local = False  # started by the control plane, and ended with it

    def __init__(self, *args: Any, truth: Truth, slots: int, devices: tuple[Device, ...], clock_s: float, rate: float):
        super().__init__(*args, clock_s=clock_s, rate=rate)
        self.truth = truth
        self.slots = slots
        self.devices = devices
        self.sick: set[str] = set()  # devices that take no work
        self.foreign: set[str] = set()  # devices on which somebody else's process is
        self.region = ""
        self.calm = False  # nobody else is there
        self.ram_bytes, self.cpu_cores = 64 * 10**9, slots + 2
        self.records: dict[str, bytes] = {}  # attempt: its encoded AttemptRecord
        self.spools: dict[str, Spool] = {}
        self.noted: dict[str, Kernel] = {}  # attempt: the kernel that was given its cell
        self.noted_sessions: dict[str, Kernel] = {}
        self.kernels: list[Kernel] = []
        self.agent_up_since = inf
        self.welcomed_since = inf
        self.watches: dict[str, Told] = {}  # the agent's: who looks at a spool when it grows
        self._kernel_n = 0

    def next_kernel(self) -> int:
        """A number for a kernel."""
        self._kernel_n += 1
        return self._kernel_n

    @property
    def inventory(self) -> Inventory:
        """What it is and has."""
        return Inventory(
            host=self.name,
            os="linux",
            arch="x86_64",
            cpu_cores=self.cpu_cores,
            ram_bytes=self.ram_bytes,
            python="3.11.0",
            region=self.region,
            devices=tuple([replace(each, sick="Xid 79" if each.uuid in self.sick else "") for each in self.devices]),
        )

    def calm_down(self) -> None:
        """All devices are well, and nobody else is on them."""
        self.sick.clear()
        self.foreign.clear()
        self.calm = True

    @property
    def sample(self) -> Sample:
        """How it fares."""
        process = OnDevice(pid=4121, name="python", user="alice", bytes=20 * 10**9)
        foreign = [DeviceSample(uuid=each, free_bytes=4 * 10**9, foreign=(process,)) for each in sorted(self.foreign)]
        free = self.ram_bytes if self.calm else self.sim.random.randint(1, self.ram_bytes)
        return Sample(cpu=self.sim.random.random(), ram_free_bytes=free, devices=tuple(foreign))

    def start_kernel(self, owner: str, session: str | None, assign: Assign) -> Kernel:
        """A new kernel process, for a fresh attempt or a session."""
        kernel = Kernel(self, owner, session, assign)
        self.kernels.append(kernel)
        self.truth.check_room(self)
        return kernel

    def grew(self, attempt: str) -> None:
        """A spool grew: an agent that watches it looks."""
        watch = self.watches.get(attempt)
        if watch is not None:
            watch()

    def agent_gone(self) -> None:
        """Nobody listens any more."""
        self.agent_up_since = self.welcomed_since = inf
        self.watches.clear()
        for kernel in self.kernels:
            kernel.died.clear()

    def die(self) -> None:
        """For good, with everything on it."""
        self.sleep(inf)
        self.agent_gone()
        for kernel in list(self.kernels):
            kernel.die()
