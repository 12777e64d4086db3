"""What can go wrong between a person and a job."""

from __future__ import annotations

from typing import Any

from gpulayer.explaining import why_table
from gpulayer.protocol.types import JobView, Problem


class GpulayerError(Exception):
    """The base of our errors. In a notebook only its own line shows, never our code."""

    def _render_traceback_(self) -> list[str]:
        return [f"gpulayer: {self}"]


def interrupted() -> KeyboardInterrupt:
    """To be raised for a Ctrl-C, or Stop, that was noted first. In a notebook its name alone shows, never our code.

    It is no class of its own: of a program that it ends the shell learns by which signal.
    """
    error: Any = KeyboardInterrupt()
    error._render_traceback_ = lambda: ["KeyboardInterrupt"]
    return error


class ControlPlaneError(GpulayerError):
    """No control plane answers, and none could be started."""


class NobodyAnswers(ControlPlaneError):
    """One that is known does not answer now."""


class RequestRefused(GpulayerError):
    """The control plane did not do what was asked."""

    def __init__(self, problem: Problem):
        super().__init__(problem.line())
        self.problem = problem


class JobError(GpulayerError):
    """A job that did not succeed. `job` is its last view, `remote` what its cell raised when it was ended."""

    def __init__(self, line: str, job: JobView, remote: RemoteError | None = None):
        super().__init__(line)
        self.job = job
        self.remote = remote

    def _render_traceback_(self) -> list[str]:
        lines = [*(self.remote.traceback if self.remote else ()), f"gpulayer: {self}"]
        if self.job.kind == "cell" and self.job.outcome is not None and self.job.outcome.tail:  # else it stands above
            lines += ["the last lines of its process:", *self.job.outcome.tail.splitlines()[-16:]]
        return lines


class JobFailed(JobError):
    """The job's program failed, or something around it did."""


class JobRejected(JobError):
    """No worker could take the job: the reasons, worker by worker."""

    def lines(self) -> list[str]:
        """The same for people: what was rejected, and the reasons as a table, which the text holds in one line."""
        table, said = why_table(self.job), " ".join(str(self).split())
        return [f"gpulayer: {said.partition(': ')[0] if table else said}", *table]

    def _render_traceback_(self) -> list[str]:
        return self.lines()


class JobCancelled(JobError):
    """The job was cancelled."""


class RemoteError(GpulayerError):
    """An exception that was raised on the worker; its traceback is the remote one.

    Of a call `call` is its id, `index` its place in the map, `worker` the machine's name.
    """

    call: str = ""
    index: int = 0
    worker: str = ""

    @staticmethod
    def named(ename: str, evalue: str, traceback: list[str]) -> RemoteError:
        """One of a class that is called as the remote exception's: so the notebook records the same as without us."""
        return type(ename, (RemoteError,), {"__module__": __name__})(ename, evalue, traceback)

    def __init__(self, ename: str, evalue: str, traceback: list[str]):
        super().__init__(evalue)
        self._say(ename, evalue, traceback)

    def _say(self, ename: str, evalue: str, traceback: list[str]) -> None:
        self.ename = ename
        self.evalue = evalue
        self.traceback = traceback
        self.shown = False  # where it came, because the cell's output went on after it: it is raised without a word
        self.hint = ""  # what is known here of its cause, and what to do

    def _render_traceback_(self) -> list[str]:
        lines = self.traceback or [f"{self.ename}: {self.evalue}"]
        return [*lines, f"gpulayer: {self.hint}"] if self.hint else lines
