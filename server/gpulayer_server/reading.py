"""What clients ask for: jobs, tasks and attempts of any age, from the plane where they live, else from the store.

Nothing here changes anything. What is read is right once everything decided so far is committed (`after_commits`).
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from gpulayer.protocol.types import TERMINAL, AttemptView, JobView, State, TaskView
from gpulayer_server.clock import Clock
from gpulayer_server.core.explaining import Why
from gpulayer_server.core.plane import Plane
from gpulayer_server.core.state import Job
from gpulayer_server.core.views import (
    attempt_view,
    job_view,
    names_of_workers,
    stored_view,
    summary,
    task_view,
    waiting_view,
)
from gpulayer_server.mapreading import MapReading
from gpulayer_server.store.database import Store, Stored


class Reading(MapReading):
    """Reads a plane and its store: the half of the shell that changes nothing. One thread uses it: the loop's."""

    plane: Plane
    store: Store
    clock: Clock

    def view(self, name: str, index: int | None = None, why: Why | None = None) -> JobView | None:
        """A job, with reasons while it waits; with `index`, as one task of it is. None: it is not there.

        `why`: of now, where many are looked at.
        """
        job = self.plane.jobs.get(name)
        if job is None:
            return self.stored_view(name, index)
        if index is not None and not job.task(index):
            return None
        return waiting_view(self.plane, job, self.clock.now(), index, why)

    def why(self) -> Why:
        """Why jobs wait, as of now."""
        return Why(self.plane, self.clock.now())

    def stored_view(self, name: str, index: int | None = None) -> JobView | None:
        """The same by what is committed alone, whatever the plane knows by now."""
        stored = self.store.stored(name, index)
        return None if stored is None else self._as_stored(stored)

    def views(
        self,
        limit: int = 50,
        *,
        owner: str | None = None,
        state: State | None = None,
        label: str | None = None,
        name: str | None = None,
        before: str | None = None,
    ) -> list[JobView]:
        """Jobs, newest first, of one owner, in one state, with a label 'k=v', of a name, older than job `before`."""
        if state is not None and state not in TERMINAL:
            return self._live(limit, owner=owner, state=state, label=label, name=name, before=before)
        found = self.store.page(limit, owner=owner, state=state, label=label, name=name, before=before)
        return [self._newest(each) for each in found]

    def _live(
        self, limit: int, *, owner: str | None, state: State, label: str | None, name: str | None, before: str | None
    ) -> list[JobView]:
        """Jobs that go on, by what the plane knows of them."""
        plane = self.plane
        if state is not State.QUEUED:  # a worker has them, or may have them: of a long queue nothing is looked at
            busy = {plane.tasks[each.task].job for each in plane.attempts.values() if not each.over}
            jobs = sorted((plane.jobs[each] for each in busy), key=lambda job: job.n, reverse=True)
        else:
            jobs = reversed(plane.jobs.values())
        first_n = self.store.n_of(before) if before is not None else None
        key, _, value = (label or "").partition("=")
        names = names_of_workers(plane)
        views: list[JobView] = []
        for job in jobs:
            fits = (owner is None or job.owner == owner) and (name is None or job.spec.name == name)
            older = before is None or (first_n is not None and job.n < first_n)
            if fits and older and (label is None or job.spec.labels.get(key) == value) and job.whole is state:
                views.append(stored_view(job, names))
                if len(views) == limit:
                    break
        return views

    def _newest(self, stored: Stored) -> JobView:
        live = self.plane.jobs.get(stored.job.id)
        return job_view(self.plane, live) if live is not None else self._as_stored(stored)

    def _as_stored(self, stored: Stored) -> JobView:
        view = summary(stored.job, stored.task, stored.state, stored.tally, names_of_workers(self.plane))
        if stored.job.spec.calls is not None and view.calls is None:
            view = replace(view, calls=self.store.maps.count(stored.job.n, over=stored.job.state is not None))
        return view

    def task_views(self, name: str) -> list[TaskView] | None:
        """The tasks of a job by index, ascending. None: there is no such job."""
        job = self.plane.jobs.get(name) or self.store.job(name)
        if job is None:
            return None
        names = names_of_workers(self.plane)
        return [task_view(task, names) for task in job.tasks]

    def attempt_views(self, name: str, index: int | None = None) -> list[AttemptView] | None:
        """Every attempt of a job, or of one task of it, by index and number. None: there is no such job."""
        job = self.plane.jobs.get(name) or self.store.job(name)
        if job is None:
            return None
        names = names_of_workers(self.plane)
        tasks = {task.id: task for task in job.tasks if index is None or task.index == index}
        attempts = self.store.attempts_of_job(name)
        found = [attempt_view(each, tasks[each.task], names) for each in attempts if each.task in tasks]
        return sorted(found, key=lambda view: (view.index, view.number))

    def states(self, names: Iterable[str]) -> dict[str, State]:
        """The states of these jobs; those that are not there are left out."""
        live = {name: self.plane.state_of(name) for name in names}
        stored = self.store.states([name for name, state in live.items() if state is None])
        found = {name: state or stored.get(name) for name, state in live.items()}
        return {name: state for name, state in found.items() if state is not None}

    def ends_of(self, names: Iterable[str]) -> dict[str, State]:
        """How those of these jobs ended that do not live any more."""
        wanted = [name for name in names if self.plane.state_of(name) is None]
        stored = self.store.states(wanted) if wanted else {}
        return {name: state for name, state in stored.items() if state is not None}

    def first_attempt(self, name: str) -> str | None:
        """The current or last attempt of a job's first task."""
        live = self.plane.jobs.get(name)
        tasks = live.tasks[:1] if live is not None else self.store.first_tasks(name)
        return next((task.attempt.id for task in tasks if task.attempt is not None), None)

    def stored_by_keys(self, owner: str, keys: Iterable[str]) -> dict[str, tuple[str, str]]:
        """By key: id and payload's hash of the jobs of the past that these keys made; live ones are the plane's."""
        return self.store.jobs_by_keys(owner, [key for key in keys if (owner, key) not in self.plane.keys])

    def stored_by_key(self, owner: str, key: str) -> Job | None:
        """A job of the past that this key made; live ones are the plane's to find."""
        return None if (owner, key) in self.plane.keys else self.store.job_by_key(owner, key)

    def history_view(self, job: Job) -> JobView:
        """A job as the store has it."""
        live = self.plane.jobs.get(job.id)
        return job_view(self.plane, live) if live else stored_view(job, names_of_workers(self.plane))

    def owner_of(self, name: str) -> str | None:
        """Whose job it is. None: there is no such job."""
        job = self.plane.jobs.get(name)
        return self.store.owner_of(name) if job is None else job.owner
