"""Mutants that change nothing which must hold, each with the reason. Seeds may find none of them."""

from __future__ import annotations

_RESEND = "a resend is harmless"
_ONCE_MORE = "it is found out once more"
_THE_SAME = "what would be done of many is the same of one, only slower"
_NARROWS = "no event leads there: the guard says so to readers and to the type checker"

#: Name -> the reason.
EQUIVALENT: dict[str, str] = {
    # ------------------------------------------------------------ said twice
    "Ack-doubled": f"{_RESEND}: an offset is acknowledged once",
    "verdicts-doubled": f"{_RESEND}: what is judged twice begins twice from the same offset",
    "attempts.HeartbeatAck:1-doubled": "a heartbeat on its way counts too early, by far less than 0.2 leases",
    "attempts.Forget:1-doubled": f"{_RESEND}: it is forgotten already",
    "attempts.Forget:3-doubled": f"{_RESEND}: it is forgotten already",
    "attempts.Recorded:1-doubled": f"{_RESEND}: it is recorded already",
    "linkcore.Link._local:5": f"{_RESEND}: the session is known to have ended",
    "fleet._verdict:3-never": "the worker says right after the welcome what its hello said: no process is left",
    "callslink.HeldCalls._forget_results:1": f"{_RESEND}: the first result of a call is the one that counts",
    "callslink.HeldCalls.pump:2-always": "of nothing nothing is given back",
    "linkcalls.hear:5-always": "of nothing nothing is let go of, and nobody hears it whose attempt is over",
    "linkcalls._to_run:1-always": "of nothing nothing runs",
    "linkcalls.happen:1": "what comes once the end is recorded is refused there",
    # ------------------------------------------------------------ found the general way, too
    "callslink.HeldCalls.take:1": _THE_SAME,
    "callslink.HeldCalls._kept_of:1": _THE_SAME,
    "callslink.HeldCalls.pump:1": _THE_SAME,
    "callslink.part_of:1": _THE_SAME,
    "callslink._piece:1": _THE_SAME,
    "callslink._joined:1": _THE_SAME,
    # ------------------------------------------------------------ written twice
    "plane.Plane.handle:4-always": "who waits is looked at once more than needed",
    "jobs.cancel:3-always": "of what has ended a row is committed once more, with a wish at which nobody looks",
    "attempts.started:1": "the same rows are committed once more",
    "sessions.close:1-always": "of two wishes to end a session the later gives the reason, and both are true",
    "linkcore.Link._judged:2-never": "the next tick ends what is not wanted",
    "linkcore.Link._judged:3-always": "nothing is let go of up to byte 0",
    "linkcore.Link._tell:1-always": "out of touch it goes nowhere; before the welcome the hello has said it already",
    "state.Job.whole:1": "the state of one task is that of all of them",
    "state.Job.shown:1": "of one task it is the first in its state",
    "queue._Waiting.add:1": "it finds the end of the line, too",
    "queue._Waiting.remove:1": "it finds the head of the line, too",
    "queue._Waiting.remove:2": "what is gone from the line is kept a while longer",
    "condition._another:1": "the same machine is written once more",
    "attempts._beat:1": "the same is noted once more, and who waits is told the same",
    "condition.look:1": "where nothing was measured, or nobody waits, nothing is found",
    "condition.look:2": "where nothing that is measured matters, nothing is found",
    "condition.look:3-always": "room is looked for where there is none",
    "placing._Round._is_kept:1": _ONCE_MORE,
    "placing._Round._is_kept:2": "in a line of its own nobody else stands before it",
    "placing._Round._place_all:1": "too few are no choice",
    "placing._Round._place_all:3": _NARROWS,
    "placing._Round._demands:1": "of many that came free nothing is wanted that none of them has",
    "placing._Round._wanted:3": _ONCE_MORE,
    "placing._Round._wanted:4": "a line that fits on none of many that came free is placed nowhere",
    "placing._Round._wanted:7": _ONCE_MORE,
    "placing._Round._place:6": _ONCE_MORE,
    "placing.place_waiting:2-always": "in an empty queue nobody is first",
    "placing.place_waiting:4-always": "where nobody came and nothing came free, nobody is looked at",
    "placing._could:1": _ONCE_MORE,
    "placing._could:2": "a machine that could take one task is found among those who are known",
    "placing._could:3": "who is there is among those who are known",
    "waiting.forget_lines:1": "a line in which nobody waits is made anew",
    "waiting.wants_of:1": "of equal requirements there is one record",
    # ------------------------------------------------------------ never the case
    "ending.cancel_attempt:1-always": _NARROWS,
    "linkcore.Link._welcome:1-always": "verdicts are of what the hello declared, and nothing is let go of in between",
    "linkcore.Link._unfit:2": "the control plane assigns nothing to a session that it ends",
    "jobs._cancel_task:4-always": "a task that neither waits nor is over has an attempt",
    "attempts.requeue_unstarted:1": _NARROWS,
    "attempts.lose:1": _NARROWS,
    "fleet._refusal:3": "the tick closes the silent connection in the same half second; the newcomer comes again",
}
