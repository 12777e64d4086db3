"""Faults that a person thought of, as a line of source and what stands in its place."""

from __future__ import annotations

import ast
from functools import partial

from tests.simulation.mutants import handwritten_calls
from tests.simulation.mutants.mutant import Mutant

_CORE = "gpulayer_server.core"
_ROOM = "gpulayer_server.scheduling.room"
_SHELL = "tests.simulation.controlplane"  # the shell's contract, as the simulator carries it out

#: Name -> module, source that must be there once, what is put in its place.
_TABLE: dict[str, tuple[str, str, str]] = {
    # ------------------------------------------------------------ the plane
    "names-without-epoch": (f"{_CORE}.plane", "{prefix}-{self.epoch}-{self.names}", "{prefix}-0-{self.names}"),
    "output-after-the-end": (f"{_CORE}.plane", "worker.id and not attempt.over", "worker.id"),
    "queue-not-restored": (f"{_CORE}.plane", "if task.state is State.QUEUED and not", "if False and not"),
    "holders-not-restored": (f"{_CORE}.plane", "if attempt.holds_slot:", "if False:"),
    "session-not-held": (f"{_CORE}.plane", "self._hold(session.worker, session.id, session.claim())", "pass"),
    "running-not-restored": (f"{_CORE}.plane", "if session is not None and attempt.in_session:", "if False:"),
    "marks-not-made-up": (f"{_CORE}.plane", "for attempt in snapshot.lost]", "for attempt in ()]"),
    "gap-not-noticed": (f"{_CORE}.plane", "fleet.notice_gap(self, now, out)", "self.last_tick = now"),
    "done-jobs-kept": (
        f"{_CORE}.plane",
        "        if job.undone == 0:\n",
        "        if False:\n",
    ),
    "keys-forgotten-at-once": (f"{_CORE}.state", "keep_keys_ticks: int = 10", "keep_keys_ticks: int = -1"),
    "lost-attempt-frees-session": (f"{_CORE}.state", "(not self.over or self.end_offset is None)", "not self.over"),
    # ------------------------------------------------------------ attempts
    "over-not-checked": (
        f"{_CORE}.attempts",
        "attempt is None or attempt.over or attempt",
        "attempt is None or attempt",
    ),
    "recorded-not-said": (f"{_CORE}.attempts", "out.send(event.conn, Recorded(attempt=message.attempt))", "pass"),
    "not-requeued": (
        f"{_CORE}.attempts",
        "        out.changed.add(task.job)\n        plane.enqueue(task)\n\n\ndef lose",
        "        out.changed.add(task.job)\n\n\ndef lose",
    ),
    "not-requeued-after-loss": (f"{_CORE}.attempts", "        plane.enqueue(task)\n    else:", "    else:"),
    "one-retry-too-many": (f"{_CORE}.attempts", "task.lost <= spec.retries", "task.lost <= spec.retries + 1"),
    "mark-forgotten": (f"{_CORE}.attempts", "out.marks.append((attempt.id, problem))", "pass"),
    "released-before-over": (
        f"{_CORE}.attempts",
        "    if not attempt.over:\n        problem",
        "    if False:\n        problem",
    ),
    "slot-freed-with-the-end": (
        f"{_CORE}.attempts",
        "    _leave_session(plane, attempt, now)\n\n\ndef _leave",
        "    _leave_session(plane, attempt, now)\n"
        "    waiting.free(plane, plane.workers[attempt.worker], attempt.id)\n\n\ndef _leave",
    ),
    "slot-never-freed": (f"{_CORE}.attempts", "waiting.free(plane, worker, attempt.id)", "pass"),
    "release-not-stored": (f"{_CORE}.attempts", "    out.put(attempt)\n    out.fleet_changed", "    out.fleet_changed"),
    "end-not-stored": (
        f"{_CORE}.ending",
        "    task.ended_at = now\n    out.put(task)\n",
        "    task.ended_at = now\n",
    ),
    "start-not-stored": (
        f"{_CORE}.attempts",
        "        out.put(session)\n    out.put(task, attempt)",
        "        out.put(session)",
    ),
    "session-use-forgotten": (f"{_CORE}.attempts", "session.used = True", "pass"),
    "unstarted-while-running": (
        f"{_CORE}.attempts",
        "if task.state is State.RUNNING and not task.cancel_wanted:",
        "if False:",
    ),
    # ------------------------------------------------------------ workers
    "given-up-goes-on": (f"{_CORE}.fleet", "go_on=False, acked=acked, recorded=recorded)", "go_on=True, acked=acked)"),
    "given-back-unheard": (f"{_CORE}.fleet", "if held.released and not held.ended:", "if False:"),
    "lost-runs-again": (
        f"{_CORE}.fleet",
        "if attempt.started_at is None:\n        attempts.requeue",
        "if True:\n        attempts.requeue",
    ),
    "undeclared-goes-on": (
        f"{_CORE}.fleet",
        "_not_declared(plane, worker, attempt, now, out)\n    for session",
        "pass\n    for session",
    ),
    "lost-session-stays": (
        f"{_CORE}.fleet",
        "        sessions.ended(plane, worker, session.id, reason, out)",
        "        pass",
    ),
    "cancel-not-said-again": (
        f"{_CORE}.fleet",
        "if task.cancel_wanted or gangs",
        "if gangs",
    ),
    "lease-too-short": (f"{_CORE}.fleet", "away_s >= plane.settings.lost_after_s and", "away_s >= 20 and"),
    "everything-leased": (f"{_CORE}.fleet", "leased = plane.jobs[task.job].spec.leased", "leased = True"),
    "silence-unnoticed": (f"{_CORE}.fleet", "now - worker.last_seen_at > plane.settings.silent_after_s", "False"),
    "old-connection-counts": (f"{_CORE}.fleet", "        del plane.by_conn[worker.conn]\n", ""),
    "gap-keeps-leases": (
        f"{_CORE}.fleet",
        "            worker.gone_since = now\n    for session",
        "            pass\n    for session",
    ),
    "unwanted-session-stays": (f"{_CORE}.fleet", "end_sessions=tuple(sorted(unwanted))", "end_sessions=()"),
    # ------------------------------------------------------------ sessions, placing, jobs
    "session-slot-kept": (f"{_CORE}.sessions", "    waiting.free(plane, worker, session.id)\n", ""),
    "session-close-not-stored": (
        f"{_CORE}.sessions",
        "    session.reason = session.reason or reason\n    out.put(session)",
        "    session.reason = session.reason or reason",
    ),
    "session-not-told-to-end": (
        f"{_CORE}.sessions",
        "    out.send(plane.workers[session.worker].conn, EndSession(session=session.id))",
        "",
    ),
    "fresh-state-untold": (f"{_CORE}.sessions", "plane.ended_sessions[session.key] = session.reason", "pass"),
    "two-cells-in-a-session": (
        f"{_CORE}.assigning",
        "session.closing or session.running is not None or",
        "session.closing or",
    ),
    "assigned-to-nobody": (
        f"{_CORE}.assigning",
        "session.running is not None or worker.conn is None",
        "session.running is not None",
    ),
    "attempt-not-stored": (f"{_CORE}.assigning", "    out.put(task, attempt)\n", "    out.put(task)\n"),
    "session-not-stored": (f"{_CORE}.assigning", "    out.put(session)\n", ""),
    "slot-not-taken": (
        f"{_CORE}.assigning",
        "        waiting.take(plane, worker, attempt.id, attempt.claim(job))\n",
        "        pass\n",
    ),
    "busy-devices-taken": (
        f"{_CORE}.machine",
        "                    whole.add(device.uuid)\n",
        "                    pass\n",
    ),
    "measured-room-unheeded": (
        "gpulayer_server.scheduling.match",
        "    return vacancy.vacant(requirements, asks, worker)\n",
        "    return True\n",
    ),
    "busy-slots-taken": (_ROOM, "if seen.slots_free < 1 or not worker.reachable or", "if not worker.reachable or"),
    "full-worker-taken": (_ROOM, "not worker.reachable or worker.full:", "not worker.reachable:"),
    "unreachable-worker-taken": (f"{_CORE}.machine", "return self.conn is not None", "return True"),
    "cancel-not-stored": (
        f"{_CORE}.jobs",
        "            task.cancel_wanted = True\n            out.put(task)",
        "            task.cancel_wanted = True",
    ),
    "cancelled-stays-queued": (f"{_CORE}.jobs", "    plane.queue.remove_all([task.id for task in job.tasks])\n", ""),
    "key-looked-up-nowhere": (
        f"{_CORE}.jobs",
        "job = plane.job_of((owner, submission.key))\n    if",
        "job = None\n    if",
    ),
    "job-not-stored": (f"{_CORE}.jobs", "    out.put(job, *job.tasks)", "    out.put(*job.tasks)"),
    "tasks-not-stored": (f"{_CORE}.jobs", "    out.put(job, *job.tasks)", "    out.put(job)"),
    # ------------------------------------------------------------ many machines at once
    "others-go-on": (f"{_CORE}.ending", "        _end_others(plane, job, task, now, out)\n", "        pass\n"),
    "others-end-not-stored": (
        f"{_CORE}.ending",
        "        out.put(task)\n        cancel_attempt(plane, job, task, out)",
        "        cancel_attempt(plane, job, task, out)",
    ),
    "others-not-told": (
        f"{_CORE}.ending",
        "        out.put(task)\n        cancel_attempt(plane, job, task, out)",
        "        out.put(task)",
    ),
    "waits-again-in-part": (f"{_CORE}.gangs", "if _together(job):", "if True:"),
    "not-taken-back": (f"{_CORE}.gangs", "        take_back(plane, job, out)\n", "        pass\n"),
    "taken-back-after-it-began": (f"{_CORE}.gangs", "began or outcome.state", "outcome.state"),
    "restored-in-part": (f"{_CORE}.plane", " and not gangs.being_taken_back(job)", ""),
    "taking-back-not-said-again": (f"{_CORE}.fleet", " or gangs.being_taken_back(job)", ""),
    # ------------------------------------------------------------ what is declared, what is measured
    "shares-not-added": (f"{_CORE}.machine", "shares.get(device.uuid, 0) + claim", "claim"),
    "memory-not-counted": (f"{_CORE}.machine", "[claim.ram_bytes for claim in self.claims.values()]", "[]"),
    "cores-not-counted": (f"{_CORE}.machine", "[claim.cpu_cores for claim in self.claims.values()]", "[]"),
    "inventory-not-stored": (f"{_CORE}.condition", "    out.put(worker)\n", ""),
    "inventory-unheeded": (f"{_CORE}.condition", "    plane.fleet_is_another(worker)\n", ""),
    "session-claim-not-stored": ("gpulayer_server.store.rows", "_pack(r.requirements))", "_pack(Requirements()))"),
    # ------------------------------------------------------------ arrays, jobs after others, ends with the release
    "index-lost": (
        f"{_CORE}.assigning",
        "        index=task.index,\n        in_array",
        "        index=0,\n        in_array",
    ),
    "array-travels": (
        f"{_CORE}.state",
        "replace(spec, array=(), after=()) if spec.array or spec.after else spec",
        "spec",
    ),
    "priority-unheeded": (f"{_CORE}.waiting", "-job.spec.priority", "0"),
    "runs-before-the-other-ended": (f"{_CORE}.ending", "        job.waits_for.add(name)\n", ""),
    "runs-after-a-failure": (
        f"{_CORE}.ending",
        "    if state is State.SUCCEEDED:\n        job.waits",
        "    if True:\n        job.waits",
    ),
    "waits-in-vain": (
        f"{_CORE}.ending",
        "        if state is None or state in TERMINAL:",
        "        if False:",
    ),
    "nobody-told-of-the-end": (f"{_CORE}.ending", "plane.awaited.pop(job.id, ())", "()"),
    "waiting-forgotten-with-a-start": (
        f"{_CORE}.plane",
        "if job.spec.after else []\n            self.unheard",
        "if False else []\n            self.unheard",
    ),
    "end-of-job-not-stored": (
        f"{_CORE}.ending",
        "    out.put(JobEnd(id=job.id, n=job.n, state=job.state, ended_at=now))\n",
        "",
    ),
    "ended-before-all-have": (f"{_CORE}.ending", "    if job.over:\n", "    if True:\n"),
    "release-with-the-end-unheard": (
        f"{_CORE}.attempts",
        "        release(plane, worker, message.attempt, now, out)\n",
        "",
    ),
    "begin-with-the-end-unheard": (f"{_CORE}.attempts", "(message.began or outcome", "(outcome"),
    "frame-goes-on-without-its-bytes": (f"{_CORE}.attempts", "return  # its connection is about to be closed", "pass"),
    # ------------------------------------------------------------ the store
    "epoch-not-raised": ("gpulayer_server.store.database", "        return epoch\n", "        return 1\n"),
    "losses-forgotten": ("gpulayer_server.store.rows", "        lost=lost,\n", ""),
    "stream-not-cut": ("gpulayer_server.store.streams", "        os.ftruncate(stream.fd, boundary)\n", ""),
    "doubled-bytes-kept": (
        "gpulayer_server.store.streams",
        "memoryview(data)[stream.length - offset :]",
        "memoryview(data)",
    ),
    "marked-twice": ("gpulayer_server.store.streams", "if self._is_marked(attempt):", "if False:"),
    # ------------------------------------------------------------ the wire
    "doubled-frames-taken": (
        "gpulayer.protocol.messages",
        "if number <= self._received:\n            return None",
        "if number <= self._received:\n            return frame[4:]",
    ),
    "lost-frames-unnoticed": ("gpulayer.protocol.messages", "if number != self._received + 1:", "if False:"),
    # ------------------------------------------------------------ acknowledgements, and the order of commit and send
    "Ack-dropped": (_SHELL, "        if acks:\n", "        if False:\n"),
    "Ack-doubled": (_SHELL, "for attempt, offset in acks.items()]", "for attempt, offset in [*acks.items()] * 2]"),
    "Ack-of-too-much": (_SHELL, "Ack(attempt=attempt, offset=offset)", "Ack(attempt=attempt, offset=offset + 1)"),
    "verdicts-dropped": (f"{_CORE}.fleet", "verdicts=tuple(verdicts)", "verdicts=()"),
    "verdicts-doubled": (f"{_CORE}.fleet", "verdicts=tuple(verdicts)", "verdicts=tuple(verdicts) * 2"),
    "sent-before-the-commit": (
        _SHELL,
        "        self.outbox.append(unit)\n",
        "        self._send(unit)\n        unit.effects.sends.clear()\n        self.outbox.append(unit)\n",
    ),
    "answered-before-the-commit": (
        _SHELL,
        "        self.outbox.append(unit)\n",
        "        self._answer(unit)\n        unit.effects.replies.clear()\n        unit.views.clear()\n"
        "        self.outbox.append(unit)\n",
    ),
    "marked-before-the-commit": (
        _SHELL,
        "        self.outbox.append(unit)\n",
        "        self._mark(unit)\n        unit.effects.marks.clear()\n        self.outbox.append(unit)\n",
    ),
    "words-overtake-a-commit": (_SHELL, "if not ops and not self.outbox:", "if not ops:"),
    "failed-commit-goes-on": (_SHELL, "            self._fail()\n            return\n", "            pass\n"),
    "not-rebuilt-after-a-failed-commit": (_SHELL, "            self.load(names=self.plane.names)\n", ""),
    "names-again-after-a-failed-commit": (_SHELL, "self.load(names=self.plane.names)", "self.load(names=0)"),
    # ------------------------------------------------------------ the worker
    "told-not-reset": ("gpulayer_worker.linkcore", "held.told_began = held.told_end = held.told_gone = False", "pass"),
    "sent-not-reset": ("gpulayer_worker.linkcore", "held.sent = held.acked = verdict.acked", "pass"),
    "window-ignores-acks": ("gpulayer_worker.linkcore", "            held.acked = offset\n", ""),
    "end-told-early": ("gpulayer_worker.linkout", " and held.sent >= held.end and", " and"),
    "released-told-early": (
        "gpulayer_worker.linkout",
        "held.gone and held.recorded and not held.told_gone",
        "held.gone and not held.told_gone",
    ),
    "released-before-gone": (
        "gpulayer_worker.linkout",
        "held.gone and held.recorded and not held.told_gone",
        "held.outcome and held.recorded and not held.told_gone",
    ),
    "assignment-not-persisted": (
        "gpulayer_worker.linkcore",
        "        out.append(Persist(attempt=assign.attempt))\n",
        "",
    ),
    "giving-back-not-persisted": (
        "gpulayer_worker.linkcore",
        "        held.gone = True\n        out.append(Persist(attempt=held.assign.attempt))",
        "        held.gone = True",
    ),
    "given-back-forgotten": ("gpulayer_worker.linkout", "back or Released(attempt=name)", "Released(attempt=name)"),
    "never-forgotten": (
        "gpulayer_worker.linkcore",
        "if held is not None and held.gone:\n                    del",
        "if False:\n                    del",
    ),
    "trims-too-much": (
        "gpulayer_worker.linkcore",
        "Trim(attempt=held.assign.attempt, offset=offset)",
        "Trim(attempt=held.assign.attempt, offset=offset + 1)",
    ),
    "lease-unheeded": ("gpulayer_worker.linkcore", "LEASE_PART = 0.8", "LEASE_PART = 1.5"),
    "lease-end-is-failure": (
        "gpulayer_worker.linkcore",
        "                held.recorded = True\n                out.append(Persist(attempt=held.assign.attempt))\n"
        "                if held.assign.attempt != over:",
        "                if held.assign.attempt != over:",
    ),
    "lease-anew-with-the-agent": ("gpulayer_worker.linkcore", "RESUMED_LEASE_S = 5.0", "RESUMED_LEASE_S = 60.0"),
    "session-end-untold": (
        "gpulayer_worker.linkcore",
        "for name, reason in self.ended_sessions.items():  # the",
        "for name, reason in ():  # the",
    ),
    "cell-into-an-ended-session": (
        "gpulayer_worker.linkcore",
        "if assign.session in self.ended_sessions:",
        "if False:",
    ),
}


def _replaced(old: str, new: str, source: str) -> ast.Module:
    found = source.count(old)
    if found != 1:
        raise ValueError(f"{found} places with {old!r}; a mutant needs one")
    return ast.parse(source.replace(old, new))


def mutants() -> dict[str, Mutant]:
    """All of them, by name."""
    return {
        name: Mutant(module=module, line=" ".join(old.split()), edit=partial(_replaced, old, new))
        for name, (module, old, new) in {**handwritten_calls.TABLE, **_TABLE}.items()
    }
