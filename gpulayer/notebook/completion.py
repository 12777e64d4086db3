"""What Tab offers behind `%%gpulayer` and `%gpulayer`."""

from __future__ import annotations

import argparse
import re
import shlex
import time
from collections.abc import Callable, Sequence
from typing import Any

from gpulayer.client.api import Api
from gpulayer.client.errors import GpulayerError
from gpulayer.notebook.commands import command_parser
from gpulayer.notebook.options import COMMANDS, Parser, cell_parser
from gpulayer.parsing import ACCELERATORS
from gpulayer.placement import ARCHITECTURES, FRAMEWORKS, SYSTEMS
from gpulayer.protocol.endpoint import Endpoint
from gpulayer.protocol.requirements import LOCALITIES
from gpulayer.protocol.types import WorkerView

_ASK_S = 0.3  # whoever pressed Tab waits
_KEPT_S = 2.0  # names that were just asked for are good for the next keystroke too
_MAGIC = re.compile(r"\s*(%%?)gpulayer[ \t]+(.*)", re.DOTALL)
_LAST_WORD = re.compile(r"(?:'[^']*|\"[^\"]*|\S*)\Z")
_JOBS = 50
_CHOICES = {
    "--accelerator": ACCELERATORS,
    "--framework": FRAMEWORKS,
    "--os": SYSTEMS,
    "--arch": ARCHITECTURES,
    "--group-locality": LOCALITIES,
}


class Names:
    """The names of workers, sessions and jobs, as a control plane that runs has them; none is started for it.

    `variables` gives those of the notebook.
    """

    def __init__(self, endpoint: Callable[[], Endpoint | None], variables: Callable[[], list[str]]):
        self._endpoint = endpoint
        self.variables = variables
        self._kept: dict[str, tuple[float, list[str]]] = {}

    def workers(self) -> list[str]:
        """Names of all machines."""
        return self._ask("workers", lambda api: [worker.name for worker in api.workers()])

    def device_names(self) -> list[str]:
        """Names of the devices that machines have."""
        return self._ask("device_names", lambda api: _each(api.workers(), _device_names))

    def worker_labels(self) -> list[str]:
        """Labels that machines carry, as 'key=value'."""
        return self._ask("labels", lambda api: _each(api.workers(), _labels))

    def sessions(self) -> list[str]:
        """Names of open sessions."""
        return self._ask("sessions", lambda api: [session.name for session in api.sessions()])

    def jobs(self) -> list[str]:
        """Ids of the last jobs, newest first."""
        return self._ask("jobs", lambda api: [job.id for job in api.jobs(limit=_JOBS)])

    def live_jobs(self) -> list[str]:
        """Ids of those that have not ended, newest first."""
        return self._ask("live", lambda api: [job.id for job in api.jobs(limit=_JOBS) if not job.terminal])

    def _ask(self, what: str, ask: Callable[[Api], list[str]]) -> list[str]:
        asked_at, names = self._kept.get(what, (float("-inf"), []))
        if time.monotonic() - asked_at < _KEPT_S:
            return names
        endpoint = self._endpoint()
        try:
            names = ask(Api(endpoint, timeout_s=_ASK_S)) if endpoint is not None else []
        except (GpulayerError, OSError):
            return []  # nobody answers in time: there is nothing to offer, and the next keystroke asks again
        self._kept[what] = (time.monotonic(), names)
        return names


def _each(workers: Sequence[WorkerView], names: Callable[[WorkerView], list[str]]) -> list[str]:
    return sorted({name for worker in workers for name in names(worker)})


def _device_names(worker: WorkerView) -> list[str]:
    return [device.name for device in worker.inventory.devices if device.name]


def _labels(worker: WorkerView) -> list[str]:
    return [f"{key}={value}" for key, value in worker.inventory.labels.items()]


def complete(text: str, names: Names) -> tuple[str, list[str]] | None:
    """The last word of a magic's line up to the cursor, and what it may become; None where that is not ours to say."""
    line = _MAGIC.fullmatch(text)
    if line is None:
        return None
    word = _LAST_WORD.search(line[2])
    last = word[0] if word else ""
    before = _words(line[2][: len(line[2]) - len(last)])
    if line[1] == "%%":
        found = _options(cell_parser(), before, last, names, [])
    elif not before:
        return last, [each for each in COMMANDS if each.startswith(last)]
    elif before[0] in COMMANDS:
        parser = command_parser(before[0])
        found = _options(parser, before[1:], last, names, _arguments(before, parser, names))
    else:
        found = None
    return found


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _options(
    parser: Parser, before: list[str], last: str, names: Names, arguments: Sequence[str]
) -> tuple[str, list[str]] | None:
    option, equals, value = last.partition("=")
    if equals and parser.takes_value(option):
        last, option = value, option
    else:
        option = before[-1] if before and parser.takes_value(before[-1]) else ""
    if option in ("--in", "--out"):
        last = last.rpartition(",")[2]
        return last, _fitting(names.variables(), last)
    if option:
        values = _values(option, names)
        return None if values is None else (last, _fitting(values, last))
    if last and not last.startswith("-"):
        return last, _fitting(arguments, last)
    left = [each for each in parser.options() if each not in before or _may_repeat(parser, each)]
    return last, ([] if last else _fitting(arguments, "")) + [each for each in left if each.startswith(last)]


def _may_repeat(parser: Parser, option: str) -> bool:
    return any(
        option in action.option_strings and isinstance(action, argparse._AppendAction)  # pyright: ignore[reportPrivateUsage]
        for action in parser._actions  # pyright: ignore[reportPrivateUsage]
    )


def _values(option: str, names: Names) -> list[str] | None:
    """What an option can be given; [] where nobody knows, None for a path, which IPython completes."""
    asked = {
        "--worker": names.workers,
        "--session": names.sessions,
        "--device-name": names.device_names,
        "--worker-label": names.worker_labels,
    }
    if option in asked:
        return asked[option]()
    if option in _CHOICES:
        return list(_CHOICES[option])
    return None if option in ("--source", "--include", "--exclude", "--input", "--output") else []


def _arguments(before: list[str], parser: Parser, names: Names) -> list[str]:
    """What a command can be given that is no option, where that is still to come."""
    if any(not word.startswith("-") for word in _without_values(before[1:], parser)):
        return []
    sources = {
        "attach": names.jobs,
        "logs": names.jobs,
        "cancel": names.live_jobs,
        "release": names.sessions,
        "session": names.sessions,
    }
    source = sources.get(before[0])
    return source() if source is not None else []


def _without_values(words: list[str], parser: Parser) -> list[str]:
    return [word for at, word in enumerate(words) if not (at and parser.takes_value(words[at - 1]))]


def _fitting(values: Sequence[str], last: str) -> list[str]:
    """Those that begin with what stands there, quoted where a shell's word would have to be."""
    begun = last[1:] if last[:1] in ("'", '"') else last
    return [shlex.quote(each) for each in values if each.startswith(begun)]


def make_matcher(names: Names) -> Any:
    """A matcher for IPython's completer; None where IPython is too old to take one."""
    try:
        from IPython.core.completer import SimpleCompletion, context_matcher
    except ImportError:  # before 8.6
        return None

    @context_matcher(identifier="gpulayer")
    def gpulayer_matcher(context: Any) -> Any:
        found = complete(context.text_until_cursor, names)
        if found is None:
            return {"completions": []}
        last, texts = found
        completions = [SimpleCompletion(text=each, type="gpulayer") for each in texts]
        return {"completions": completions, "matched_fragment": last, "suppress": True, "ordered": True}

    return gpulayer_matcher
