"""Writing down attempts, so that the next agent finds them: each cell in a log of its own, all commands in one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from gpulayer_worker.commandlog import CommandLog
from gpulayer_worker.layout import Layout
from gpulayer_worker.link import Held

log = logging.getLogger("gpulayer.worker")


class AttemptLog:
    """What is to be written, and what could not be.

    Arguments:
        layout: where cells are written down.
        held: the attempts that there are now.
        runs: whether an attempt was started: without its first record none is.
    """

    def __init__(self, layout: Layout, held: Callable[[], Mapping[str, Held]], runs: Callable[[str], bool]):
        self._layout = layout
        self._held = held
        self._runs = runs
        self._commands = CommandLog(layout.command_log)
        self._unwritten: set[str] = set()
        self._refused: dict[str, OSError] = {}

    def load(self) -> list[Held]:
        """Every attempt that is here, as an agent before us left it. Raises OSError."""
        commands = self._commands.load()
        return self._layout.load({each.assign.attempt for each in commands}) + commands

    def changed(self, attempts: Iterable[str]) -> None:
        """These are to be written."""
        self._unwritten.update(attempts)

    def write(self) -> None:
        """Write what changed: once for each attempt, however often it changed."""
        if not self._unwritten:
            return
        held = self._held()
        commands: list[Held] = []
        for name in self._unwritten:
            each = held.get(name)
            if each is None:  # it was let go of, and goes from the disk as a whole
                continue
            if each.assign.spec.command is not None:
                commands.append(each)
            else:
                self._write_cell(name, each)
        self._unwritten.clear()
        if commands:
            self._write_commands(commands)

    def _write_cell(self, name: str, held: Held) -> None:
        """Write a record. A later one that fails is as if we had died just before it; without the first none starts."""
        try:
            self._layout.persist(held)
        except OSError as error:
            log.error("the record of attempt %s can't be written: %s", name, error)
            if not self._runs(name):
                self._refused[name] = error

    def _write_commands(self, commands: list[Held]) -> None:
        """Write the records of commands. What can't be written is tried again with whatever is written next."""
        try:
            self._commands.write(commands)
        except OSError as error:
            log.error("the records of %d commands can't be written: %s", len(commands), error)
            for held in commands:
                name = held.assign.attempt
                self._unwritten.add(name)
                if not self._runs(name):
                    self._refused[name] = error

    def refusal(self, attempt: str) -> OSError | None:
        """Why the first record of an attempt could not be written: it must not start. Said once."""
        return self._refused.pop(attempt, None) if self._refused else None

    def written(self, attempt: str) -> bool:
        """Whether all that is known of an attempt is on the disk."""
        return attempt not in self._unwritten

    def drop(self, attempt: str) -> None:
        """A command is held no more."""
        self._commands.drop(attempt)

    def close(self) -> None:
        """Close its file."""
        self._commands.close()
