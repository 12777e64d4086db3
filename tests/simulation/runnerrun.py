"""One attempt of a job of calls on a worker, with the steps and the order of `gpulayer_worker.run.calls.CallsRun`."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from gpulayer.protocol.messages import Assign
from gpulayer.protocol.types import Outcome, State
from gpulayer_worker import link
from tests.simulation.cellrun import CellRun
from tests.simulation.machine import Kernel, Spool
from tests.simulation.runners import CallKey, Given, Runner, given, load, ranges

if TYPE_CHECKING:
    from tests.simulation.agent import Agent

_HANDED = 2  # calls that the process has at once: the rest waits here


class RunnerRun(CellRun):
    """From the assignment to the last process's end; its calls come and go meanwhile."""

    def __init__(self, agent: Agent, assign: Assign):
        super().__init__(agent, assign)
        self._queue: deque[Given] = deque()
        self._runner: Runner | None = None
        self._sent: set[CallKey] = set()  # results that the link has
        self._leaving = False
        self._deaths = 0
        self._idle_n = 0

    @property
    def keys(self) -> list[CallKey]:
        """The calls that are here, with those whose results are not accepted."""
        runner = self._runner
        there = [*runner.keys, *runner.results] if runner is not None else []
        return [*there, *[each.key for each in self._queue]]

    # ---------------------------------------------------------------- wishes

    def _want(self, wish: str, problem: str, grace_s: float) -> None:
        self._give_back_all()
        super()._want(wish, problem, grace_s)

    def follow(self, effect: link.ForCalls) -> None:
        """About its calls."""
        match effect:
            case link.RunCalls(batches=batches):
                calls = given(batches)
                if self._ended or self._leaving or self._wish:
                    self._back([each.key for each in calls])
                else:
                    self._queue.extend(calls)
            case link.LetGo(ranges=those):
                for each in those:
                    self._sent -= {(each.map, each.first + n) for n in range(each.count)}
                    if self._runner is not None:
                        self._runner.let_go(each)
            case link.GiveBackCalls(count=count):
                self._back([self._queue.pop().key for _ in range(min(count, len(self._queue)))])
            case link.DropMap(map=name):
                self._queue = deque(each for each in self._queue if each.key[0] != name)
                if self._runner is not None:
                    self._runner.drop(name)
            case link.WindDown():
                self._leave()
        self._feed()

    def _leave(self) -> None:
        """End once what runs is done."""
        self._leaving = True
        self._give_back_all()

    def _give_back_all(self) -> None:
        keys = [each.key for each in self._queue]
        self._queue.clear()
        if self._runner is not None:
            keys += [each.key for each in self._runner.queue]
            self._runner.queue.clear()
        self._back(keys)

    def _back(self, keys: list[CallKey], *, began: bool = False) -> None:
        if keys and self.agent.up:
            reason = "signal 9" if began else ""
            self.agent.emit(link.CallsBack(attempt=self.name, ranges=ranges(keys), began=began, reason=reason))

    # ---------------------------------------------------------------- the run

    def start(self) -> None:
        """Find the process that an agent before this one started, and what it has, or begin."""
        kernel = self.agent.machine.noted.get(self.name)
        if kernel is not None and kernel.alive and isinstance(kernel.program, Runner):
            self._runner = kernel.program
            self.agent.emit(
                link.CallsFound(attempt=self.name, ranges=ranges([*self._runner.keys, *self._runner.results]))
            )
        super().start()

    def _execute(self, kernel: Kernel) -> None:
        machine = self.agent.machine
        self._running = True
        machine.spools.setdefault(self.name, Spool())
        machine.watches[self.name] = self._look
        if not kernel.alive:
            self._gone_unseen()
        if not kernel.alive and (not isinstance(kernel.program, Runner) or self._stateful or self._wish):
            self._died()
            return
        if not kernel.alive:
            self._replace()
            return
        self._attach(kernel)

    def _gone_unseen(self) -> None:
        """The process died before this agent could talk to it: with what it was to run, and with its results."""
        runner, self._runner = self._runner, None
        if runner is not None:
            running = [runner.running.key] if runner.running is not None else []
            self._back(running, began=True)
            self._back([key for key in (*runner.keys, *runner.results) if key not in running])

    @property
    def _stateful(self) -> bool:
        calls = self.assign.spec.calls
        return calls is not None and calls.stateful

    def _attach(self, kernel: Kernel) -> None:
        self._kernel = kernel
        kernel.died.append(self._died)
        runner = kernel.program
        if not isinstance(runner, Runner):
            runner = load(kernel, self.assign, self.agent.machine.spools[self.name])
        self._runner, runner.told = runner, self._look
        if not self._began:
            self._began = True
            self.agent.emit(link.Began(attempt=self.name))
        self._look()
        if self._wish:
            self._carry_out_wish(5.0 if self._wish == "cancel" else 0.0)
        self._feed()

    def _replace(self) -> None:
        """Another process, of the same attempt."""
        if self._ended or not self.agent.up:
            return
        if self._wish or self._leaving:
            self._died()
            return
        self._sent.clear()
        kernel = self.agent.machine.start_kernel(self.name, None, self.assign)
        self.agent.machine.noted[self.name] = kernel
        self._attach(kernel)

    def _feed(self) -> None:
        runner = self._runner
        if runner is None or not self._running or self._ended or not runner.live or not self.agent.up:
            return
        while self._queue and len(runner.keys) < _HANDED:
            runner.give(self._queue.popleft())
        self._idle_n += 1
        if runner.keys or self._wish:
            return
        if self._leaving:
            runner.kernel.die()
            return
        calls = self.assign.spec.calls
        self.agent.after(calls.idle_timeout_s if calls is not None else 0.0, self._look_idle, self._idle_n)

    def _look_idle(self, idle_n: int) -> None:
        if self._idle_n == idle_n and not self._ended:
            self._leave()
            self._feed()

    # ---------------------------------------------------------------- while it runs

    def _look(self) -> None:
        """There are results, or text."""
        runner = self._runner
        if self._ended or runner is None or not self.agent.up:
            return
        end = len(runner.spool.data)
        new = [key for key in runner.results if key not in self._sent]
        self._sent.update(new)
        runs = tuple([runner.results[key] for key in new])
        events: list[link.Event] = [link.SpoolGrew(attempt=self.name, end=end)] if end > max(self._seen, 0) else []
        self._seen = end
        if runs:
            events.append(link.ResultsCame(attempt=self.name, runs=runs, end=end))
        if events:
            self.agent.emit(*events)
        self._feed()

    def _died(self) -> None:
        if self._ended or not self.agent.up:
            return
        runner = self._runner
        if runner is not None:
            self._look()
            if self._ended or not self.agent.up:
                return
            if runner.running is not None:
                self._back([runner.running.key], began=True)
            self._back([each.key for each in runner.queue])
            runner.running = None
            runner.queue.clear()
        self._runner = None
        if self._wish:
            state = State.CANCELLED if self._wish == "cancel" else State.FAILED
            self._end(Outcome(state=state, problem=self._problem if state is State.FAILED else ""))
        elif self._leaving:
            self._end(Outcome(state=State.SUCCEEDED))
        elif self._stateful or runner is None:
            self._end(Outcome(state=State.FAILED, problem="its runner died: signal 9"))
        else:
            self.agent.after(0.2 * self.agent.sim.random.random(), self._replace)

    def _end(self, outcome: Outcome) -> None:
        if not self.agent.up:
            return
        self._give_back_all()
        self._ended = True
        self.agent.machine.watches.pop(self.name, None)
        spool = self.agent.machine.spools.get(self.name)
        end = len(spool.data) if spool is not None else 0
        if self._kernel is not None:
            self._kernel.die()
        self.agent.emit(
            link.SpoolGrew(attempt=self.name, end=end),
            link.Ended(attempt=self.name, end=end, outcome=outcome, began=self._began, gone=True),
        )
