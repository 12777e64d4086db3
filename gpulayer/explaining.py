"""Why a job fits on a machine or does not, as a table that reads well in plain text: worker by worker, every reason."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpulayer.protocol.types import Explanation, JobView, Placement, Reason
from gpulayer.tables import cut, letters, wrapped
from gpulayer.words import devices_named, visible

ELIGIBLE = "eligible"

_WIDTH = 100
_NAME_LETTERS = 32
_ALL_ROWS = 12  # of more workers those with the same reasons share a row
_NAMED = 2  # of these
_NARROWEST = 20


def explanation_lines(explanation: Explanation, width: int = _WIDTH) -> list[str]:
    """What would become of a job: one line for all of it, one or more for each worker, and what would help."""
    rows = _by_worker(explanation.reasons)
    free = [name for name in explanation.eligible if name not in rows]
    rows |= {name: [ELIGIBLE] for name in free}
    lines = [f"scheduling: {_headline(explanation)}", *_rows(rows, width)]
    return lines + _nearest(explanation.nearest, width)


def reason_table(reasons: Iterable[Reason], nearest: str = "", width: int = _WIDTH) -> list[str]:
    """The same of reasons alone: the workers, every reason of each, and what would help."""
    return [*_rows(_by_worker(reasons), width), *_nearest(nearest, width)]


def why_table(job: JobView, width: int = _WIDTH) -> list[str]:
    """The same of a job that waits, or was rejected. Workers of another name than it asks for are left out."""
    named = [reason for reason in job.reasons if reason.code != "worker_name"] or job.reasons
    return reason_table(named, job.nearest, width)


def _headline(explanation: Explanation) -> str:
    if explanation.placement is Placement.PLACED:
        chosen = ", ".join(explanation.chosen)
        devices = devices_named(explanation.devices)
        return "eligible now" + (f", it would run on {chosen}" if chosen else "") + (f" · {devices}" if devices else "")
    count = len(explanation.eligible)
    if explanation.placement is Placement.WAITING:
        if not count:
            return "it would wait for a worker"
        codes = {reason.code for reason in explanation.reasons}
        if "limit" in codes:
            return "it would wait until the token's limit allows more"
        if "nodes" in codes:
            return "it would wait for more workers"
        return f"it would wait, {'the eligible worker is' if count == 1 else f'all {count} eligible workers are'} busy"
    if count > 1:
        return f"no set of workers fits, {count} do by themselves"
    return "not enough eligible workers, only 1" if count else "no eligible worker"


def _by_worker(reasons: Iterable[Reason]) -> dict[str, list[str]]:
    texts: dict[str, list[str]] = {}
    for reason in reasons:
        said = texts.setdefault(reason.worker, [])
        text = visible(" ".join(reason.text.split()))
        if text not in said:
            said.append(text)
    return texts


def _rows(by_worker: dict[str, list[str]], width: int) -> list[str]:
    nobodys = by_worker.get("", [])
    named = {name: texts for name, texts in by_worker.items() if name}
    shown = _together(named) if len(named) > _ALL_ROWS else [(visible(name), texts) for name, texts in named.items()]
    shown = [(cut(name, _NAME_LETTERS), texts) for name, texts in shown]
    names = max((letters(name) for name, _ in shown), default=0)
    lines: list[str] = []
    for text in nobodys:
        lines += wrapped(text, width, "  ", "    ")
    for name, texts in shown:
        lines += _row(name, names, texts, width)
    return lines


def _row(name: str, names: int, texts: Sequence[str], width: int) -> list[str]:
    """The name beside the first line of its reasons, the others below that."""
    margin = names + 4
    said = [line for text in texts for line in wrapped(text, max(_NARROWEST, width - margin), below="  ")]
    first = f"  {name}{' ' * (names - letters(name))}  {said[0] if said else ''}".rstrip()
    return [first, *(" " * margin + line for line in said[1:])]


def _together(by_worker: dict[str, list[str]]) -> list[tuple[str, list[str]]]:
    """Workers with the same reasons share a row."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, texts in by_worker.items():
        alike.setdefault(tuple(texts), []).append(name)
    return [(_several(names), list(texts)) for texts, names in alike.items()]


def _several(names: Sequence[str]) -> str:
    """'box-1, box-2 and 97 more': as many names as there is room for, at least one."""
    every = visible(", ".join(names))
    if len(names) <= _NAMED + 1 and letters(every) <= _NAME_LETTERS:
        return every
    for count in range(_NAMED, 1, -1):
        some = visible(", ".join(names[:count]))
        more = f" and {len(names) - count} more" if len(names) > count else ""
        if letters(some + more) <= _NAME_LETTERS:
            return some + more
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return cut(visible(names[0]), _NAME_LETTERS - letters(more)) + more


def _nearest(nearest: str, width: int) -> list[str]:
    return wrapped(f"nearest: {nearest}", width, below=" " * 9) if nearest else []
