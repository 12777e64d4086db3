"""What a job leaves besides its output: values for variables, files for the folder."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpulayer.client.errors import GpulayerError
from gpulayer.client.files import Files, Home
from gpulayer.client.transfer import Tie
from gpulayer.notebook.folder import Source
from gpulayer.notebook.status import StatusLine
from gpulayer.notebook.stop import Stop
from gpulayer.notebook.values import fetch
from gpulayer.protocol.types import CellSpec, JobView, State
from gpulayer.source import Bundle

_REMEMBERED = 100  # jobs whose folder at home is known as it was; of older ones nothing at home is replaced


@dataclass(frozen=True, kw_only=True)
class _Expected:
    home: Home
    names: tuple[str, ...]


class Results:
    """Takes values and files of jobs that have ended. Owned by what follows the jobs."""

    def __init__(self, tie: Tie, source: Source):
        self._tie = tie
        self._source = source
        self._files = Files()
        self._expected: dict[str, _Expected] = {}

    def expect(self, job: str, cell: CellSpec, bundle: Bundle, sent_at_ns: int) -> None:
        """A job of this notebook that will leave something. `sent_at_ns`: when its folder was looked at, Unix time."""
        home = Home(root=bundle.root, sent=bundle.manifest, sent_at_ns=sent_at_ns, globs=cell.output_globs)
        while len(self._expected) >= _REMEMBERED:
            self._expected.pop(next(iter(self._expected)))
        self._expected[job] = _Expected(home=home, names=cell.outputs)

    def expected(self, job: str) -> bool:
        """Whether its end has to be waited for: only there its results are named."""
        return job in self._expected

    def wanted(self, job: JobView) -> bool:
        """Whether something is to be taken of a job that has ended."""
        outcome = job.outcome
        return self.expected(job.id) or (outcome is not None and bool(outcome.values or outcome.files))

    def take(self, shell: Any, job: JobView, status: StatusLine, stop: Stop, *, told: bool) -> None:
        """Take them: files also of a job that failed, values of one that succeeded.

        Args:
            shell: whose variables are set.
            job: as it ended.
            status: the line under the cell.
            stop: from here on an interrupt ends the taking.
            told: say which variables were set.

        Raises:
            GpulayerError: of a job that succeeded; of another one it is said only, since its own error follows.
        """
        if not stop.wanted:
            stop.disarm()
        expected = self._expected.get(job.id)
        try:
            self._take_files(job, expected, status)
            if job.state is State.SUCCEEDED:
                self._take_values(shell, job, expected, status, told=told)
        except GpulayerError as error:
            if job.state is State.SUCCEEDED:
                raise
            _say([f"gpulayer: {error}"], sys.stderr)
        finally:
            status.show(job)

    def _take_files(self, job: JobView, expected: _Expected | None, status: StatusLine) -> None:
        outcome = job.outcome
        named = outcome.files if outcome is not None else ""
        if expected is not None and not (expected.home.globs and job.attempt is not None):
            return
        if expected is None and not named:
            return
        home = expected.home if expected is not None else Home(root=Path(self._source.root()))
        came = self._files.fetch(job, home, self._tie, status.note)
        _say(came.lines(), sys.stdout)
        if named or job.state is State.SUCCEEDED:  # of one that failed nobody expects all
            _say(came.warnings(), sys.stderr)

    def _take_values(
        self, shell: Any, job: JobView, expected: _Expected | None, status: StatusLine, *, told: bool
    ) -> None:
        names = expected.names if expected is not None else None
        values = fetch(job, self._tie, status.note, names)
        if values:
            shell.push(values)
            if told:
                _say([f"{', '.join(values)} set from job {job.id}"], sys.stdout)


def _say(lines: list[str], stream: Any) -> None:
    if lines:
        stream.write("\n".join(lines) + "\n")
        stream.flush()
