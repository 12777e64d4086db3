"""The words and figures that people read: one vocabulary in the cell, the terminal and the panel."""

from __future__ import annotations

import difflib
import signal
import unicodedata

from gpulayer.protocol.types import CallsCount, Device, JobView, Outcome, Requirements, State

SYMBOLS = {
    State.QUEUED: "○",
    State.ASSIGNED: "◐",
    State.RUNNING: "●",
    State.SUCCEEDED: "✓",
    State.FAILED: "✗",
    State.REJECTED: "✗",
    State.CANCELLED: "■",
    State.UNREACHABLE: "◌",
    State.LOST: "↻",
}
CANCELLING = "□"
WARM = "○"  # of a function whose runners wait for calls, as a session that is idle

WORDS = {
    State.QUEUED: "waiting",
    State.ASSIGNED: "starting",
    State.RUNNING: "running",
    State.SUCCEEDED: "done",
    State.FAILED: "failed",
    State.REJECTED: "failed",
    State.CANCELLED: "cancelled",
    State.UNREACHABLE: "out of reach",
    State.LOST: "moved",
}

_MAKERS = ("NVIDIA ", "GeForce ", "Tesla ", "AMD ", "Instinct ")
_UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_JOINERS = "\u200c\u200d"  # some scripts, and some emoji, are written with them
_WHY_LETTERS = 120  # of what a waiting job waits for: a line is one line with twenty machines too
_ERROR_LETTERS = 200


def visible(text: str) -> str:
    """A text without commands to a terminal: control characters and marks of direction are written out, '\\x1b[2J'."""
    return text if text.isprintable() else "".join(map(_visible_letter, text))


def _visible_letter(letter: str) -> str:
    if letter.isprintable() or letter in _JOINERS or unicodedata.category(letter) == "Zs":
        return letter
    return letter.encode("unicode_escape").decode()


def duration(seconds: float) -> str:
    """'4.2 s', '3 min 12 s', '2 h 05 min'."""
    seconds = max(0.0, seconds)
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    seconds = max(seconds, 60.0)
    if seconds < 3600:
        return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"
    return f"{int(seconds) // 3600} h {int(seconds) % 3600 // 60:02d} min"


def size(count: float) -> str:
    """'41 kB', '1.2 GB'."""
    for unit, digits in (("B", 0), ("kB", 0), ("MB", 1), ("GB", 1)):
        if round(count, digits) < 1000:
            return f"{count:.{digits}f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def whole_size(count: float) -> str:
    """'24 GB', '6.2 GB': without a nought behind the point."""
    return size(count).replace(".0 ", " ")


def of_size(part: float | None, whole: float | None) -> str:
    """'18.2 of 24 GB', '0.4 of 24 GB'; '24 GB' or '400 MB' where the other is not known."""
    if part is None or not whole:
        known = part if part is not None else whole
        return "" if known is None else whole_size(known)
    unit = size(whole).split()[1]
    return f"{part / _UNITS[unit]:.1f} of {whole_size(whole)}"


def percent(share: float) -> str:
    """'97%' of a share from 0 to 1."""
    return f"{round(min(1.0, max(0.0, share)) * 100)}%"


def roughly(seconds: float) -> str:
    """'42 s', '2 min', '3 days': in whole units."""
    for unit, length_s in (("day", 86400), ("h", 3600), ("min", 60)):
        whole = int(seconds // length_s)
        if whole:
            return f"{whole} {unit}{'s' if unit == 'day' and whole > 1 else ''}"
    return f"{max(0, int(seconds))} s"


def ago(seconds: float) -> str:
    """'just now', '42 s ago', '2 min ago'."""
    return f"{roughly(seconds)} ago" if seconds >= 10 else "just now"


def limit(seconds: float) -> str:
    """'90 s', '30 min', '2 h': a time that somebody set, exactly."""
    for unit, length_s in (("h", 3600), ("min", 60)):
        if seconds >= length_s and seconds % length_s == 0:
            return f"{seconds / length_s:g} {unit}"
    return f"{seconds:g} s"


def ordinal(place: int) -> str:
    """'1st', '2nd', '11th'."""
    if place % 100 in (11, 12, 13):
        return f"{place}th"
    return f"{place}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(place % 10, 'th') }"


def symbol_of(job: JobView) -> str:
    """The sign of a job's state: its shape says as much as a colour would."""
    return CANCELLING if job.cancelling else WARM if is_warm(job) else SYMBOLS[job.state]


def state_of(job: JobView) -> str:
    """The word for a job's state."""
    return "cancelling" if job.cancelling else "warm" if is_warm(job) else WORDS[job.state]


def is_warm(job: JobView) -> bool:
    """Whether it is a function none of whose calls is left to do, and whose runners wait for others."""
    return job.calls is not None and job.state is State.RUNNING and job.calls.idle_since is not None


def calls_of(count: CallsCount, now: float) -> str:
    """'31 of 96 calls done · 4 running · 1 failed · 2 runners'; '96 calls done · 2 runners, idle 4 min'.

    Calls whose map ended without them do not stay open: '80 of 361 calls done · 281 dropped'.
    """
    runners = f"{count.runners} runner{'s' if count.runners != 1 else ''}" if count.runners else ""
    if count.idle_since is not None and runners:
        runners += f", idle {roughly(now - count.idle_since)}"
    of_all = "" if count.done == count.calls else f" of {count.calls:,}"
    calls = f"call{'s' if count.calls != 1 else ''}"
    return " · ".join(
        filter(
            None,
            (
                f"{count.done:,}{of_all} {calls} done",
                f"{count.running:,} running" if count.running else "",
                f"{count.failed:,} failed" if count.failed else "",
                f"{count.dropped:,} dropped" if count.dropped else "",
                runners,
            ),
        )
    )


def calls_were(calls: int, done: int, failed: int = 0) -> str:
    """Of what ended before all were done: '80 of 361 calls were done'; '8 of 9 calls were done · 1 failed'."""
    of_all = "" if done == calls else f" of {calls:,}"
    were = "call was" if calls == 1 else "calls were"
    return f"{done:,}{of_all} {were} done{f' · {failed:,} failed' if failed else ''}"


def calls_line(job: JobView, now: float) -> str:
    """How far the calls of a function are, or were when it ended otherwise than well; '' of anything else."""
    count = job.calls
    if count is None:
        return ""
    if job.state in (State.CANCELLED, State.FAILED):
        return calls_were(count.calls, count.done, count.failed)
    return calls_of(count, now)


def wanted(requirements: Requirements) -> str:
    """'cuda', '2 cuda'; '' where any machine fits."""
    kind, many = requirements.device_kind, requirements.device_count
    return f"{many} {kind}" if kind and many > 1 else kind or ""


def needs(requirements: Requirements) -> str:
    """All that a job asks of its machine: '2 cuda, each with 40 GB · A100* · torch>=2.4 · on box'; '' for nothing."""
    asked = requirements
    devices = wanted(asked)
    if asked.min_vram_bytes:
        devices += f", {'each ' if asked.device_count > 1 else ''}with {whole_size(asked.min_vram_bytes)}"
    if asked.vram_share_bytes:
        devices += f", {whole_size(asked.vram_share_bytes)} of it"
    cores = asked.cpu_cores
    return " · ".join(
        filter(
            None,
            (
                f"{asked.nodes} machines" + ("" if asked.locality == "prefer" else f" ({asked.locality})")
                if asked.nodes > 1
                else "",
                devices,
                " or ".join(asked.device_names),
                f"capability {asked.min_capability}" if asked.min_capability else "",
                f"driver {asked.min_driver}" if asked.min_driver else "",
                *asked.frameworks,
                f"python{asked.python}" if asked.python else "",
                f"{whole_size(asked.ram_bytes)} RAM" if asked.ram_bytes else "",
                f"{cores:g} core{'' if cores == 1 else 's'}" if cores else "",
                asked.os,
                asked.arch,
                *asked.labels,
                "bound to near cores" if asked.bind_cpus else "",
                f"on {asked.worker}" if asked.worker else "",
            ),
        )
    )


def device_name(device: Device) -> str:
    """'cuda:1 RTX 4090', without the maker's name."""
    return f"{device.kind}:{device.index} {_model(device)}".rstrip()


def devices_named(devices: tuple[Device, ...]) -> str:
    """'cuda:4,5 A100', and those of another name behind that."""
    alike: dict[tuple[str, str], list[Device]] = {}
    for device in devices:
        alike.setdefault((device.kind, device.name), []).append(device)
    return ", ".join(f"{devices_short(tuple(same))} {_model(same[0])}".rstrip() for same in alike.values())


def _model(device: Device) -> str:
    name = device.name
    for maker in _MAKERS:
        name = name.removeprefix(maker)
    return name


def devices_short(devices: tuple[Device, ...]) -> str:
    """'cuda:0,1'; '' for none."""
    return f"{devices[0].kind}:{','.join(str(device.index) for device in devices)}" if devices else ""


def reasons(job: JobView) -> list[str]:
    """Why a job waits, or was refused, machine by machine: 'gpu-box-1: all 2 slots busy'.

    First the machines that could take it later; those of another name than was asked for only where nothing else is.
    """
    named = [reason for reason in job.reasons if reason.code != "worker_name"] or job.reasons
    by_worker: dict[str, list[str]] = {}
    for reason in sorted(named, key=lambda reason: not reason.temporary):
        by_worker.setdefault(reason.worker, []).append(" ".join(reason.text.split()))
    return [f"{name}: {'; '.join(texts)}" if name else "; ".join(texts) for name, texts in by_worker.items()]


def held_back(job: JobView) -> bool:
    """Whether it is a job before it, and no machine, for which one was rejected."""
    return bool(job.reasons) and all(reason.code == "after" for reason in job.reasons)


def failure(job: JobView) -> str:
    """Why a job did not succeed, in one short line; '' where nothing is known."""
    outcome = job.outcome
    if outcome is None:
        return ""
    why = outcome.problem or outcome.error or program_end(outcome)
    line = why.splitlines()[0] if why else ""
    return line if len(line) <= _ERROR_LETTERS else f"{line[: _ERROR_LETTERS - 1]}…"


def program_end(outcome: Outcome) -> str:
    """'exit code 3', 'ended by SIGKILL'; '' for what ended well, or by itself never."""
    if outcome.signal:
        try:
            return f"ended by {signal.Signals(outcome.signal).name}"
        except ValueError:
            return f"ended by signal {outcome.signal}"
    return f"exit code {outcome.exit_code}" if outcome.exit_code else ""


def running_s(job: JobView, now: float) -> float:
    """How long a job has run, or did; of one that never ran, how long it has waited, or did."""
    return (job.ended_at or now) - (job.started_at or job.submitted_at or now)


def _place(job: JobView) -> str:
    more = f" and {len(job.devices) - 1} more" if len(job.devices) > 1 else ""
    return f" · {device_name(job.devices[0])}{more}" if job.devices else ""


def _notes(job: JobView) -> str:
    return "".join(f" · {note}" for note in job.notes)


def progress_of(job: JobView, now: float = 0.0) -> str:
    """Of a job with many tasks, how many are where: '● 31 of 96 done · 1 failed'; of a function its calls."""
    if job.calls is not None:
        ended = f"{state_of(job)} · " if job.state in (State.CANCELLED, State.FAILED) else ""
        return f"{symbol_of(job)} {ended}{calls_line(job, now)}"
    total, done = sum(job.tasks.values()), job.tasks.get(State.SUCCEEDED.value, 0)
    others = [
        f"{count} {WORDS[State(state)]}"
        for state, count in job.tasks.items()
        if count and state != State.SUCCEEDED.value
    ]
    return " · ".join((f"{symbol_of(job)} {done} of {total} done", *others))


def status_line(job: JobView, now: float, sent: str = "", more: str = "%gpulayer status") -> str:
    """One line about a job: what it waits for, where it runs, how it ended.

    Args:
        job: as it is.
        now: Unix time.
        sent: the files that it took along, in words.
        more: what shows all reasons where the line has no room for them.
    """
    if job.cancelling:
        where = "" if job.tasks else _on(job)  # of many tasks each is somewhere else
        return f"{CANCELLING} cancelling{where} · job {job.id}"
    symbol = SYMBOLS[job.state]
    if job.state is State.QUEUED:
        return _waiting(job, symbol, more)
    if job.state is State.ASSIGNED:
        doing = "".join(f" · {each}" for each in (sent, job.progress) if each)
        return f"{symbol} starting{_on(job)}{doing} · job {job.id}"
    if job.state is State.RUNNING:
        took = duration(now - (job.started_at or now))
        doing = f" · {job.progress}" if job.progress else ""
        return f"{symbol} running{_on(job)}{_place(job)} · {took}{doing}{_notes(job)} · job {job.id}"
    if job.state is State.UNREACHABLE:
        return f"{symbol} out of reach: {job.worker} does not answer, the job may go on there · job {job.id}"
    if job.state is State.LOST:
        return f"{symbol} moved: {job.worker} is lost, trying again · job {job.id}"
    return _ended(job, symbol)


def peak(job: JobView) -> str:
    """What a job held at most: '6.2 GB of 24 GB' of its devices' memory where that is known, else RAM; '' unknown."""
    outcome = job.outcome
    if outcome is None or not (outcome.peak_device_bytes or outcome.peak_rss_bytes):
        return ""
    if not outcome.peak_device_bytes:
        return size(outcome.peak_rss_bytes or 0)
    memories = [device.vram_bytes for device in job.devices]
    known = sum(each for each in memories if each) if memories and all(memories) else 0
    return size(outcome.peak_device_bytes) + (f" of {whole_size(known)}" if known else "")


def overall_line(job: JobView, now: float, more: str) -> str:
    """One line about a job: of one with many tasks how many are where, once any of them was placed."""
    before = (State.QUEUED.value, State.REJECTED.value)
    if any(count for state, count in job.tasks.items() if state not in before):
        return f"{progress_of(job, now)} · job {job.id}"
    return status_line(job, now, more=more)


def _on(job: JobView) -> str:
    return f" on {job.worker}" if job.worker else ""


def _waiting(job: JobView, symbol: str, more: str) -> str:
    device = wanted(job.requirements)
    what = f" for {device}" if device else ""
    place = f" · {ordinal(job.ahead + 1)} in line{what}" if job.ahead else what
    why = reasons(job) or ([f"after {', '.join(job.after)}"] if job.after else [])
    return f"{symbol} waiting{place}{''.join(f' · {each}' for each in _fitting(why, more))} · job {job.id}"


def _fitting(why: list[str], more: str) -> list[str]:
    """The first of them, at least one, and how many more there are."""
    taken, left = [], _WHY_LETTERS
    for each in why:
        if taken and len(each) > left:
            return [*taken, f"{len(why) - len(taken)} more ({more})"]
        taken.append(each)
        left -= len(each)
    return taken


def _ended(job: JobView, symbol: str) -> str:
    took = duration(running_s(job, 0.0))
    figures = f" · peak {peak(job)}" if peak(job) else ""
    if job.state is State.SUCCEEDED:
        return f"{symbol} done{_on(job)} in {took}{figures}{_notes(job)} · job {job.id}"
    if job.state is State.REJECTED:
        return f"{symbol} {'not started' if held_back(job) else 'no eligible worker'} · job {job.id}"
    if job.state is State.CANCELLED:
        where = f"{_on(job)} after {took}" if job.worker else ""
        return f"{symbol} cancelled{where} · job {job.id}"
    why = f" · {failure(job)}" if failure(job) else ""
    return f"{symbol} failed{_on(job)} after {took}{why}{_notes(job)} · job {job.id}"


def near_words(word: str, there: list[str]) -> str:
    """' (did you mean k3f9?)', '' where nothing is near."""
    near = difflib.get_close_matches(word, there, n=1, cutoff=0.6)
    return f" (did you mean {near[0]}?)" if near else ""
