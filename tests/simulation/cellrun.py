"""One attempt on a worker, with the steps and the order of `gpulayer_worker.run.cell.CellRun` and `CommandRun`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpulayer.protocol.messages import Assign
from gpulayer.protocol.types import Outcome, State
from gpulayer_worker import link
from gpulayer_worker.keeper.client import ExitRecord
from gpulayer_worker.run.outcome import from_death, from_reply
from tests.simulation.machine import Kernel, Spool
from tests.simulation.simulator import Violation

if TYPE_CHECKING:
    from tests.simulation.agent import Agent

LATE = "heard when it was over"  # of an event that must not count
_YOUNG_S = 0.1
_DEATH = ExitRecord(pid=1, start_time=1, boot_id="", signal=9, started_at=0.0, ended_at=0.0)


class CellRun:
    """From the assignment to the last process's end."""

    def __init__(self, agent: Agent, assign: Assign):
        self.agent = agent
        self.assign = assign
        self.name = assign.attempt
        self._command = assign.spec.command is not None
        self._kernel: Kernel | None = None
        self._running = False
        self._began = False
        self._ended = False
        self._seen = -1
        self._wish = self._problem = ""
        self._force_n = 0

    # ---------------------------------------------------------------- wishes

    def interrupt(self, grace_s: float) -> None:
        """Ask it to end; by force after the grace."""
        if not self._wish:
            self._want("cancel", "it did not stop and was ended", grace_s)

    def kill(self, why: str) -> None:
        """End it at once."""
        self._want("kill", why, 0.0)

    def _want(self, wish: str, problem: str, grace_s: float) -> None:
        self._wish, self._problem = wish, problem
        self._force_n += 1
        if self._running:
            self._carry_out_wish(grace_s)

    def _carry_out_wish(self, grace_s: float) -> None:
        if self._kernel is None or self._ended:
            return
        if grace_s > 0:
            self._kernel.interrupt()
        self.agent.after(grace_s + 0.01, self._force, self._force_n)

    def _force(self, force_n: int) -> None:
        if force_n == self._force_n and not self._ended and self._kernel is not None:
            self._kernel.killed_for = self.name
            self._kernel.die()

    # ---------------------------------------------------------------- the run

    def start(self) -> None:
        """Find a kernel, while the files take a while."""
        self.agent.after(0.002 * self.agent.sim.random.random(), self._find_kernel)

    def _find_kernel(self) -> None:
        """The kernel that this attempt has already, its session's, or a fresh one."""
        agent, machine, session = self.agent, self.agent.machine, self.assign.session
        kernel = machine.noted.get(self.name)
        if kernel is None and session is None:
            kernel = machine.start_kernel(self.name, None, self.assign)
        elif kernel is None and session is not None:
            kernel = self._session_kernel(session)
        if kernel is None:
            agent.emit(link.GaveBack(attempt=self.name, reason="its session's kernel is gone"))
            return
        self._kernel = kernel
        chance = agent.sim.random.random()
        if chance > 0.7:
            agent.emit(link.Doing(attempt=self.name, text="bringing files"))
        slow = agent.sim.random.random() < agent.plan.slow_starts
        agent.after(12.0 * chance if slow else agent.plan.prepare_s * chance, self._prepared, kernel)

    def _session_kernel(self, session: str) -> Kernel | None:
        agent, machine = self.agent, self.agent.machine
        kernel = agent.sessions.get(session)
        if kernel is not None and kernel.alive:
            return kernel
        if kernel is not None or session in machine.noted_sessions or session not in agent.link.sessions:
            return None
        kernel = machine.start_kernel(session, session, self.assign)
        machine.noted_sessions[session] = kernel
        agent.session_ready(session, kernel)
        return kernel

    def _prepared(self, kernel: Kernel) -> None:
        fresh = self.name not in self.agent.machine.noted
        if fresh and self.agent.sim.random.random() < self.agent.plan.given_back:
            self._give_back(kernel)
            return
        if self._wish and fresh:
            state = State.CANCELLED if self._wish == "cancel" else State.FAILED
            problem = "" if self._wish == "cancel" else self._problem
            self._end(Outcome(state=state, problem=problem))
            return
        self.agent.machine.noted[self.name] = kernel
        self.agent.after(0.005 * self.agent.sim.random.random(), self._execute, kernel)

    def _give_back(self, kernel: Kernel) -> None:
        """Something of it can't be had on this worker."""
        if self.assign.session is None:
            kernel.die()
        self.agent.emit(link.GaveBack(attempt=self.name, reason="it can't be started here"))

    def _execute(self, kernel: Kernel) -> None:
        machine = self.agent.machine
        self._running = True
        machine.spools.setdefault(self.name, Spool())
        machine.watches[self.name] = self._look
        self._look()
        if not self.agent.up:  # it died of what it saw
            return
        if not kernel.alive:
            self._died()
            return
        kernel.died.append(self._died)
        kernel.execute(self.name, self.assign.index, self.assign.spec)
        if self._command:
            self.agent.after(_YOUNG_S, self._tell_begin)
        if self._wish:
            self._carry_out_wish(5.0 if self._wish == "cancel" else 0.0)

    # ---------------------------------------------------------------- while it runs

    def _look(self) -> None:
        """The spool may have grown."""
        spool = self.agent.machine.spools[self.name]
        end = len(spool.data)
        if self._ended or end <= max(self._seen, 0):
            return
        self._seen = end
        events: list[link.Event] = []
        if not self._began and not self._command:
            self._began = True
            events.append(link.Began(attempt=self.name))
        events.append(link.SpoolGrew(attempt=self.name, end=end))
        if spool.reply is not None and not self._command:
            outcome = from_reply(spool.reply, wish=self._wish, problem=self._problem)
            self._ended = True
            events.append(link.Ended(attempt=self.name, end=end, outcome=outcome))
        self.agent.emit(*events)
        if self._ended:
            if self.agent.sim.random.random() < self.agent.plan.late_events:
                self.agent.after(0.1 * self.agent.sim.random.random(), self._end_again, end)
            self._clean_up()

    def _died(self) -> None:
        if self._ended:
            return
        self._look()
        killed_for = self._kernel.killed_for if self._kernel is not None else ""
        if killed_for not in ("", self.name):
            raise Violation(f"{self.name} ends with the kernel that was killed to end {killed_for}")
        if self._ended:
            return
        reply = self.agent.machine.spools[self.name].reply
        if self._command and reply is not None:
            self._end(from_reply(reply, wish=self._wish, problem=self._problem))
        else:
            self._end(from_death(_DEATH, "", wish=self._wish, problem=self._problem, ram_bytes=1))

    def _tell_begin(self) -> None:
        """A command is no longer young: of a smaller one only the end is told."""
        if not self._began and not self._ended:
            self._began = True
            self.agent.emit(link.Began(attempt=self.name))

    def end_as(self, outcome: Outcome) -> None:
        """Let its program end now, in this way, if it has not ended."""
        if not self._ended:
            self._end(outcome)

    def _end(self, outcome: Outcome) -> None:
        self._ended = True
        spool = self.agent.machine.spools.get(self.name)
        end = len(spool.data) if spool is not None else 0
        began = self._command and self.name in self.agent.machine.truth.programs  # its keeper knows
        gone = self._command and self.agent.sim.random.random() < 0.7
        if gone and self._kernel is not None:
            self._kernel.die()
        self.agent.emit(
            link.SpoolGrew(attempt=self.name, end=end),
            link.Ended(attempt=self.name, end=end, outcome=outcome, began=began, gone=gone),
        )
        if not gone:
            self._clean_up()

    def _end_again(self, end: int) -> None:
        """Its process's end is noticed after the cell's own: what ended it stands."""
        self.agent.emit(link.Ended(attempt=self.name, end=end, outcome=Outcome(state=State.FAILED, problem=LATE)))

    def clean_up_after(self, kernel: Kernel | None) -> None:
        """It ended under an agent before this one; its kernel may still be there."""
        self._ended = True
        self._kernel = kernel
        self._clean_up()

    def _clean_up(self) -> None:
        """After a fresh cell nothing of it is left; a session's kernel is the session's."""
        self.agent.machine.watches.pop(self.name, None)
        delay_s = 0.0 if self.assign.session is not None else 0.1 * self.agent.sim.random.random()
        self.agent.after(delay_s, self._gone)

    def _gone(self) -> None:
        if self._kernel is not None and self.assign.session is None:
            self._kernel.die()
        self.agent.emit(link.Gone(attempt=self.name))
