"""Running commands over HTTP, and looking at what they left."""

from __future__ import annotations

import io
import uuid
from pathlib import Path
from typing import Any

import msgspec

from gpulayer.protocol.types import AttemptView, CommandSpec, JobSpec, JobView
from gpulayer.source import Limits, iter_pack, scan
from tests.support.deployment import Deployment, Worker
from tests.support.processes import until


class Bench:
    """Runs commands on one worker."""

    def __init__(self, deployment: Deployment, worker: Worker) -> None:
        self.deployment = deployment
        self.worker = worker

    def submit(self, *argv: str, command: dict[str, Any] | None = None, key: str = "", **more: Any) -> str:
        """A job's id. `command` and `more` are further fields of `CommandSpec` and `JobSpec`."""
        spec = JobSpec(command=CommandSpec(argv=argv, **(command or {})), **more)
        body = {"key": key or uuid.uuid4().hex, "spec": msgspec.to_builtins(spec)}
        answer = self.deployment.request("POST", "/v1/jobs", json=body)
        assert answer.status_code == 201, answer.text
        return answer.json()["id"]

    def shell(self, line: str, **more: Any) -> str:
        """A job of one line of shell; its id."""
        return self.submit("/bin/sh", "-c", line, **more)

    def view(self, job: str) -> JobView:
        """How a job is now."""
        answer = self.deployment.request("GET", f"/v1/jobs/{job}")
        assert answer.status_code == 200, answer.text
        return msgspec.json.decode(answer.content, type=JobView)

    def done(self, job: str) -> JobView:
        """A job once it has ended."""
        return until(lambda: view if (view := self.view(job)).terminal else None, lambda: f"{self.view(job)} to end")

    def run(self, line: str, **more: Any) -> JobView:
        """A line of shell, run to its end."""
        return self.done(self.shell(line, **more))

    def log(self, job: str, stream: str = "", **query: str) -> bytes:
        """What a job has written so far."""
        params = query | ({"stream": stream} if stream else {})
        answer = self.deployment.request("GET", f"/v1/jobs/{job}/logs", params=params)
        assert answer.status_code == 200, answer.text
        return answer.content

    def attempts(self, job: str) -> list[AttemptView]:
        """The tries of a job's tasks."""
        answer = self.deployment.request("GET", f"/v1/jobs/{job}/attempts")
        return msgspec.json.decode(answer.content, type=list[AttemptView])

    def cancel(self, job: str) -> None:
        """Ask for a job's end."""
        answer = self.deployment.request("POST", f"/v1/jobs/{job}/cancel", json={})
        assert answer.status_code < 300, answer.text

    def bundle(self, folder: Path) -> str:
        """Send a folder; its digest."""
        bundle = scan(folder, limits=Limits(files=100_000))
        answer = self.deployment.request("POST", "/v1/bundles", content=bundle.manifest.to_bytes())
        missing = answer.json()["missing"]
        if missing:
            pack = io.BytesIO()
            for piece in iter_pack([(digest, bundle.source_of[digest]) for digest in missing]):
                pack.write(piece)
            answer = self.deployment.request("POST", "/v1/blobs", content=pack.getvalue())
            assert answer.status_code < 300, answer.text
            answer = self.deployment.request("POST", "/v1/bundles", content=bundle.manifest.to_bytes())
        assert answer.status_code < 300, answer.text
        assert not answer.json()["missing"]
        return bundle.manifest.digest

    def outputs(self, job: str) -> dict[str, bytes]:
        """The files that came back, by path."""
        answer = self.deployment.request("GET", f"/v1/jobs/{job}/outputs")
        assert answer.status_code == 200, answer.text
        blobs = {row["path"]: self.deployment.request("GET", f"/v1/blobs/{row['sha256']}") for row in answer.json()}
        return {path: blob.content for path, blob in blobs.items()}

    def fixed(self) -> set[str]:
        """Parts of the command lines of what is there without any job."""
        return {"gpulayer_server", "gpulayer_worker", "pytest"}

    def left(self) -> list[str]:
        """Processes that no fixed part of the deployment is."""
        lines = self.deployment.processes().values()
        return [line for line in lines if not any(part in line for part in self.fixed())]

    def until_clean(self) -> None:
        """Nothing of any job is left: no process, no folder, no slot that is taken."""
        until(lambda: self.deployment.slots_free("alpha") == 4, "the slots to be free")
        until(lambda: not self.left(), lambda: f"no process to be left: {self.left()}")
        attempts = self.worker.data / "attempts"
        until(lambda: not attempts.exists() or not list(attempts.iterdir()), "the attempts' folders to be gone")
