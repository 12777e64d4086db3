"""Faults, put into the code one at a time: does a seed find each of them?

`python -m tests.simulation.mutants [--seconds S] [NAME …]` runs seeds against each mutant, in a process of its own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType

_CORE = "gpulayer_server.core"
_FOUND = 10  # an exit code that no accident has


@dataclass(frozen=True)
class Mutant:
    """One fault: in a module, `new` in the place of `old`, which must be there once."""

    module: str
    old: str
    new: str


MUTANTS: dict[str, Mutant] = {
    # ------------------------------------------------------------ the plane
    "names-without-epoch": Mutant(f"{_CORE}.plane", "{prefix}-{self.epoch}-{self.names}", "{prefix}-0-{self.names}"),
    "output-after-the-end": Mutant(f"{_CORE}.plane", "worker.id and not attempt.over", "worker.id"),
    "queue-not-restored": Mutant(f"{_CORE}.plane", "if task.state is State.QUEUED:\n", "if False:\n"),
    "holders-not-restored": Mutant(f"{_CORE}.plane", "if attempt.holds_slot:", "if False:"),
    "session-not-held": Mutant(f"{_CORE}.plane", "self._hold(session.worker, session.id, session)", "pass"),
    "running-not-restored": Mutant(f"{_CORE}.plane", "if session is not None and attempt.in_session:", "if False:"),
    "marks-not-made-up": Mutant(f"{_CORE}.plane", "for attempt in snapshot.lost]", "for attempt in ()]"),
    "gap-not-noticed": Mutant(f"{_CORE}.plane", "fleet.notice_gap(self, now, out)", "self.last_tick = now"),
    "done-jobs-kept": Mutant(
        f"{_CORE}.plane",
        "if all(task.done for task in job.tasks):\n                for",
        "if False:\n                for",
    ),
    "keys-forgotten-at-once": Mutant(f"{_CORE}.state", "keep_keys_ticks: int = 10", "keep_keys_ticks: int = -1"),
    "lost-attempt-frees-session": Mutant(
        f"{_CORE}.state", "(not self.over or self.end_offset is None)", "not self.over"
    ),
    # ------------------------------------------------------------ attempts
    "over-not-checked": Mutant(
        f"{_CORE}.attempts", "attempt is None or attempt.over or attempt", "attempt is None or attempt"
    ),
    "recorded-not-said": Mutant(f"{_CORE}.attempts", "out.send(worker.conn, Recorded(attempt=attempt.id))", "pass"),
    "not-requeued": Mutant(
        f"{_CORE}.attempts",
        "        out.changed.add(task.job)\n        plane.enqueue(task)\n\n\ndef lose",
        "        out.changed.add(task.job)\n\n\ndef lose",
    ),
    "not-requeued-after-loss": Mutant(f"{_CORE}.attempts", "        plane.enqueue(task)\n    else:", "    else:"),
    "one-retry-too-many": Mutant(f"{_CORE}.attempts", "task.lost <= spec.retries", "task.lost <= spec.retries + 1"),
    "mark-forgotten": Mutant(f"{_CORE}.attempts", "out.marks.append((attempt.id, problem))", "pass"),
    "released-before-over": Mutant(
        f"{_CORE}.attempts", "    if not attempt.over:\n        problem", "    if False:\n        problem"
    ),
    "slot-freed-with-the-end": Mutant(
        f"{_CORE}.attempts",
        "    _leave_session(plane, attempt, now)\n\n\ndef _leave",
        "    _leave_session(plane, attempt, now)\n"
        "    plane.workers[attempt.worker].holders.pop(attempt.id, None)\n\n\ndef _leave",
    ),
    "slot-never-freed": Mutant(f"{_CORE}.attempts", "worker.holders.pop(attempt.id, None)", "pass"),
    "release-not-stored": Mutant(
        f"{_CORE}.attempts", "    out.put(attempt)\n    out.fleet_changed", "    out.fleet_changed"
    ),
    "end-not-stored": Mutant(
        f"{_CORE}.attempts", "    task.ended_at = now\n    out.put(task)\n", "    task.ended_at = now\n"
    ),
    "start-not-stored": Mutant(
        f"{_CORE}.attempts", "        out.put(session)\n    out.put(task, attempt)", "        out.put(session)"
    ),
    "session-use-forgotten": Mutant(f"{_CORE}.attempts", "session.used = True", "pass"),
    "unstarted-while-running": Mutant(
        f"{_CORE}.attempts", "if task.state is State.RUNNING and not task.cancel_wanted:", "if False:"
    ),
    # ------------------------------------------------------------ workers
    "given-up-goes-on": Mutant(
        f"{_CORE}.fleet", "go_on=False, acked=acked, recorded=recorded)", "go_on=True, acked=acked)"
    ),
    "given-back-unheard": Mutant(f"{_CORE}.fleet", "if held.released and not held.ended:", "if False:"),
    "lost-runs-again": Mutant(
        f"{_CORE}.fleet",
        "if attempt.started_at is None:\n        attempts.requeue",
        "if True:\n        attempts.requeue",
    ),
    "undeclared-goes-on": Mutant(
        f"{_CORE}.fleet", "_not_declared(plane, worker, attempt, now, out)\n    for session", "pass\n    for session"
    ),
    "lost-session-stays": Mutant(
        f"{_CORE}.fleet", "        sessions.ended(plane, worker, session.id, reason, out)", "        pass"
    ),
    "cancel-not-said-again": Mutant(
        f"{_CORE}.fleet", "not attempt.over and plane.tasks[attempt.task].cancel_wanted", "False"
    ),
    "lease-too-short": Mutant(f"{_CORE}.fleet", "away_s >= plane.settings.lost_after_s and", "away_s >= 20 and"),
    "everything-leased": Mutant(f"{_CORE}.fleet", "leased = plane.jobs[task.job].spec.retries > 0", "leased = True"),
    "silence-unnoticed": Mutant(f"{_CORE}.fleet", "now - worker.last_seen_at > plane.settings.silent_after_s", "False"),
    "old-connection-counts": Mutant(f"{_CORE}.fleet", "        del plane.by_conn[worker.conn]\n", ""),
    "gap-keeps-leases": Mutant(
        f"{_CORE}.fleet", "            worker.gone_since = now\n    for session", "            pass\n    for session"
    ),
    "unwanted-session-stays": Mutant(f"{_CORE}.fleet", "end_sessions=tuple(sorted(unwanted))", "end_sessions=()"),
    # ------------------------------------------------------------ sessions, placing, jobs
    "session-slot-kept": Mutant(f"{_CORE}.sessions", "    worker.holders.pop(session.id, None)\n", ""),
    "session-close-not-stored": Mutant(
        f"{_CORE}.sessions",
        "    session.reason = session.reason or reason\n    out.put(session)",
        "    session.reason = session.reason or reason",
    ),
    "session-not-told-to-end": Mutant(
        f"{_CORE}.sessions", "    out.send(plane.workers[session.worker].conn, EndSession(session=session.id))", ""
    ),
    "fresh-state-untold": Mutant(f"{_CORE}.sessions", "plane.ended_sessions[session.key] = session.reason", "pass"),
    "two-cells-in-a-session": Mutant(
        f"{_CORE}.placing", "session.closing or session.running is not None or", "session.closing or"
    ),
    "assigned-to-nobody": Mutant(
        f"{_CORE}.placing", "session.running is not None or worker.conn is None", "session.running is not None"
    ),
    "attempt-not-stored": Mutant(f"{_CORE}.placing", "    out.put(task, attempt)\n", "    out.put(task)\n"),
    "session-not-stored": Mutant(f"{_CORE}.placing", "    out.put(session)\n", ""),
    "slot-not-taken": Mutant(f"{_CORE}.placing", "        worker.holders[attempt.id] = devices\n", "        pass\n"),
    "busy-devices-taken": Mutant("gpulayer_server.scheduling.match", "        if free < wanted:", "        if False:"),
    "busy-slots-taken": Mutant("gpulayer_server.scheduling.match", "if worker.slots_free < 1:", "if False:"),
    "unreachable-worker-taken": Mutant("gpulayer_server.scheduling.match", "if not worker.reachable:", "if False:"),
    "cancel-not-stored": Mutant(
        f"{_CORE}.jobs", "        task.cancel_wanted = True\n        out.put(task)", "        task.cancel_wanted = True"
    ),
    "cancelled-stays-queued": Mutant(f"{_CORE}.jobs", "        plane.queue.remove(task.id)\n", ""),
    "key-looked-up-nowhere": Mutant(f"{_CORE}.jobs", "job = plane.job_of((event.owner, event.key))", "job = None"),
    "job-not-stored": Mutant(f"{_CORE}.jobs", "    out.put(job, task)", "    out.put(task)"),
    # ------------------------------------------------------------ the store
    "epoch-not-raised": Mutant("gpulayer_server.store.database", "        return epoch\n", "        return 1\n"),
    "losses-forgotten": Mutant("gpulayer_server.store.rows", "        lost=lost,\n", ""),
    "stream-not-cut": Mutant("gpulayer_server.store.streams", "        os.ftruncate(stream.fd, boundary)\n", ""),
    "doubled-bytes-kept": Mutant(
        "gpulayer_server.store.streams", "memoryview(data)[stream.length - offset :]", "memoryview(data)"
    ),
    "marked-twice": Mutant("gpulayer_server.store.streams", "if self._is_marked(attempt):", "if False:"),
    # ------------------------------------------------------------ the wire
    "doubled-frames-taken": Mutant(
        "gpulayer.protocol.messages",
        "if number <= self._received:\n            return None",
        "if number <= self._received:\n            return frame[4:]",
    ),
    "lost-frames-unnoticed": Mutant("gpulayer.protocol.messages", "if number != self._received + 1:", "if False:"),
    # ------------------------------------------------------------ the worker
    "told-not-reset": Mutant(
        "gpulayer_worker.link", "held.told_began = held.told_end = held.told_gone = False", "pass"
    ),
    "sent-not-reset": Mutant("gpulayer_worker.link", "held.sent = held.acked = verdict.acked", "pass"),
    "window-ignores-acks": Mutant("gpulayer_worker.link", "            held.acked = offset\n", ""),
    "end-told-early": Mutant("gpulayer_worker.link", " and held.sent >= held.end and", " and"),
    "released-told-early": Mutant(
        "gpulayer_worker.link", "held.gone and held.recorded and not held.told_gone", "held.gone and not held.told_gone"
    ),
    "released-before-gone": Mutant(
        "gpulayer_worker.link",
        "held.gone and held.recorded and not held.told_gone",
        "held.outcome and held.recorded and not held.told_gone",
    ),
    "assignment-not-persisted": Mutant(
        "gpulayer_worker.link", "        out.append(Persist(attempt=assign.attempt))\n", ""
    ),
    "giving-back-not-persisted": Mutant(
        "gpulayer_worker.link",
        "        held.gone = True\n        out.append(Persist(attempt=held.assign.attempt))",
        "        held.gone = True",
    ),
    "given-back-forgotten": Mutant("gpulayer_worker.link", "back or Released(attempt=name)", "Released(attempt=name)"),
    "never-forgotten": Mutant(
        "gpulayer_worker.link",
        "if held is not None and held.gone:\n                    del",
        "if False:\n                    del",
    ),
    "trims-too-much": Mutant(
        "gpulayer_worker.link",
        "Trim(attempt=held.assign.attempt, offset=offset)",
        "Trim(attempt=held.assign.attempt, offset=offset + 1)",
    ),
    "lease-unheeded": Mutant("gpulayer_worker.link", "LEASE_PART = 0.8", "LEASE_PART = 1.5"),
    "lease-end-is-failure": Mutant(
        "gpulayer_worker.link",
        "                held.recorded = True\n                out.append(Persist(attempt=held.assign.attempt))\n"
        '                self._kill(held, "its lease',
        '                self._kill(held, "its lease',
    ),
    "lease-anew-with-the-agent": Mutant("gpulayer_worker.link", "RESUMED_LEASE_S = 5.0", "RESUMED_LEASE_S = 60.0"),
    "session-end-untold": Mutant(
        "gpulayer_worker.link",
        "for name, reason in self.ended_sessions.items():  # the",
        "for name, reason in ():  # the",
    ),
    "cell-into-an-ended-session": Mutant(
        "gpulayer_worker.link", "if assign.session in self.ended_sessions:", "if False:"
    ),
}


class _Finder(MetaPathFinder):
    """Loads one module with its fault."""

    def __init__(self, mutant: Mutant):
        self._mutant = mutant

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        if fullname != self._mutant.module:
            return None
        spec = PathFinder.find_spec(fullname, path)  # type: ignore[arg-type]
        if spec is None or spec.origin is None:
            raise ImportError(f"no module {fullname} to mutate")
        spec.loader = _Loader(fullname, spec.origin, self._mutant)
        return spec


class _Loader(SourceFileLoader):
    def __init__(self, fullname: str, path: str, mutant: Mutant):
        super().__init__(fullname, path)
        self._mutant = mutant

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_data(self.path).decode()
        found = source.count(self._mutant.old)
        if found != 1:
            raise ImportError(f"{fullname} has {found} places with {self._mutant.old!r}; a mutant needs one")
        return self.source_to_code(source.replace(self._mutant.old, self._mutant.new).encode(), self.path)


def run_one(name: str, seconds: float, start: int) -> int:
    """In this process, which must not have imported the code yet: `_FOUND` when a seed finds the mutant."""
    sys.meta_path.insert(0, _Finder(MUTANTS[name]))
    from tests.simulation.__main__ import run_seeds

    tally = run_seeds(start, 1, seconds, clock=time.process_time)  # others may use this machine, too
    return _FOUND if tally.failing else 0


def find(name: str, seconds: float, start: int = 0) -> tuple[bool, str]:
    """Whether seeds find a mutant within so long, and the last line that was said."""
    command = [sys.executable, "-m", "tests.simulation.mutants", "--one", name]
    done = subprocess.run(
        [*command, "--seconds", str(seconds), "--start", str(start)], capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, _FOUND):
        raise RuntimeError(f"mutant {name}: {done.stderr.strip()}")
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return done.returncode == _FOUND, lines[-1] if lines else ""


def main(argv: list[str] | None = None) -> int:
    """The command; 1 when a mutant is not found."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", default=[], help="mutants; all, if none is named")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each mutant")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.one:
        return run_one(args.one, args.seconds, args.start)
    names = args.names or list(MUTANTS)
    missed: list[str] = []
    for name in names:
        found, line = find(name, args.seconds, args.start)
        print(f"{'found ' if found else 'MISSED'}  {name:28}  {line[:100]}", flush=True)
        if not found:
            missed.append(name)
    print(f"{len(names) - len(missed)} of {len(names)} found", f"; missed: {', '.join(missed)}" if missed else "")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
