"""A handle to a job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpulayer.protocol.types import JobView, Outcome

if TYPE_CHECKING:
    from gpulayer.client.asks import Output
    from gpulayer.client.client import Client
    from gpulayer.client.files import Came


class Job:
    """A job by its id. What it says is asked of the control plane when it is asked."""

    def __init__(self, job_id: str, client: Client):
        self.id = job_id
        self._client = client

    def status(self) -> JobView:
        """The job as it is now."""
        return self._client.status(self.id)

    def wait(self, timeout: float | None = None) -> JobView:
        """The job once it has ended, or, `timeout` seconds later, as it is then. Raises nothing for one that failed.

        A control plane that is away meanwhile is waited for: the job goes on without it.
        """
        return self._client.wait_for(self.id, timeout)

    def result(self, timeout: float | None = None) -> Outcome:
        """How it ended, once it succeeded.

        Raises `JobFailed`, `JobCancelled` or `JobRejected` for another end, TimeoutError `timeout` seconds later.
        """
        from gpulayer.client.ending import judged

        view = self.wait(timeout)
        if not view.terminal:
            raise TimeoutError(f"job {self.id} has not ended within {timeout:g} s: {view.state.value}")
        return judged(view)

    def logs(self, stream: str | None = None, index: int | None = None) -> str:
        """What it wrote so far: of `stream` 'stdout' or 'stderr' alone, or both; of an array's task `index`."""
        return self._client.logs(self.id, stream=stream, index=index)

    def cancel(self) -> JobView:
        """End it: SIGTERM, and SIGKILL after its grace. Returns at once; `wait` returns when it has ended."""
        return self._client.cancel(self.id)

    def outputs(self) -> list[Output]:
        """The files that it left: index of the task, path, size in bytes, SHA-256, mode."""
        return self._client.outputs(self.id)

    def download(self, to: str | Path | None = None) -> Came:
        """Fetch those files, into the current folder or `to`. See `Client.download`."""
        return self._client.download(self.id, to)

    def __repr__(self) -> str:
        return f"<gpulayer job {self.id}>"
