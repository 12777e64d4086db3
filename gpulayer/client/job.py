"""A handle to a job that was detached."""

from __future__ import annotations

from collections.abc import Callable

from gpulayer.protocol.types import JobView


class Job:
    """A job by its id. What it shows is asked for when it is asked."""

    def __init__(self, job_id: str, look: Callable[[str], JobView]):
        self.id = job_id
        self._look = look

    def status(self) -> JobView:
        """The job as it is now."""
        return self._look(self.id)

    def __repr__(self) -> str:
        return f"<gpulayer job {self.id}>"
