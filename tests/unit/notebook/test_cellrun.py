"""From a cell to its job, and back, over a connection that is played by hand."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpulayer.client.connection import Subscription
from gpulayer.client.errors import (
    ControlPlaneError,
    JobCancelled,
    JobError,
    JobRejected,
    RemoteError,
    RequestRefused,
)
from gpulayer.notebook.cellrun import CellRunner, judge, numbered_like_home
from gpulayer.notebook.options import CellOptions
from gpulayer.notebook.status import StatusLine
from gpulayer.notebook.stop import Stop
from gpulayer.protocol.endpoint import Endpoint
from gpulayer.protocol.messages import Chunk, Refused, ServerToClient, Update
from gpulayer.protocol.records import encode_kernel
from gpulayer.protocol.types import JobSpec, JobView, Outcome, Problem, Reason, Requirements, State
from gpulayer.source import FileEntry, Manifest, scan

OPTIONS = CellOptions(requirements=Requirements(worker="box"), session="s", timeout_s=9.0)
UNKNOWN = Problem(status=409, code="bundle_unknown", title="the control plane lacks the source")
MANIFEST = Manifest(files=(FileEntry(path="a.py", mode=0o644, size=1, sha256="ab" * 32),))


def view(state: State, **facts: Any) -> JobView:
    given: dict[str, Any] = {"worker": "box"} | facts
    return JobView(id="k3f9", state=state, **given)


def update(state: State, **facts: Any) -> Update:
    return Update(n=1, job=view(state, **facts))


def stream(text: str, *, offset: int = 0, attempt: str = "a") -> Chunk:
    parts = [json.dumps(p).encode() for p in ({"msg_type": "stream"}, {}, {}, {"name": "stdout", "text": text})]
    return Chunk(n=1, attempt=attempt, offset=offset, data=encode_kernel(parts))


DONE = update(State.SUCCEEDED, attempt="a", outcome=Outcome(state=State.SUCCEEDED))
Script = Sequence[ServerToClient | Exception]


class Wire:
    """A connection: each submission is answered with the next script."""

    def __init__(self, *scripts: Script):
        self._scripts = iter(scripts)
        self._numbers = itertools.count(1)
        self.endpoint: Endpoint | None = Endpoint(url="http://127.0.0.1:9", token="t", pid=1, version="0")
        self.away = ""
        self.ready = True
        self.submitted: list[tuple[str, JobSpec]] = []
        self.cancelled: list[str] = []
        self.left: list[Subscription] = []
        self.on_cancel: Script = ()

    def submit(self, spec: JobSpec, key: str) -> Subscription:
        self.submitted.append((key, spec))
        self.subscription = Subscription(next(self._numbers), spec, key)
        self.play(next(self._scripts))
        return self.subscription

    def play(self, script: Script) -> None:
        for message in script:
            self.subscription.put(message)

    def unfollow(self, subscription: Subscription) -> None:
        self.left.append(subscription)

    def cancel(self, subscription: Subscription) -> None:
        self.cancelled.append(subscription.job)
        self.play(self.on_cancel)

    def wait_ready(self, timeout_s: float) -> bool:
        return self.ready


class Source:
    """A folder that was scanned."""

    def __init__(self, files: bool = True):
        self.bundle: Any = SimpleNamespace(manifest=MANIFEST if files else Manifest(files=()), contents={})
        self.sent = 0

    def scan(self, folder: str | None, **_: object) -> Any:
        return self.bundle

    def send(self, bundle: Any, endpoint: Endpoint, tell: Callable[[str], None]) -> str:
        self.sent += 1
        return "sent 1 of 1 files, 1 B"


SHELL = SimpleNamespace(displayhook=SimpleNamespace(prompt_count=7))


def run(wire: Wire, source: Source | None = None, stop: Stop | None = None) -> JobView:
    """A cell from its submission to its end."""
    runner = CellRunner(wire, source or Source())  # type: ignore[arg-type]
    status, stop = StatusLine(SHELL), stop or Stop()
    subscription = runner.submit(SHELL, "--worker box", "x = 1\n", OPTIONS, status, stop)
    return runner.follow(SHELL, subscription, status, 1000, stop, cancels=True)


# ---------------------------------------------------------------- submitting


def test_a_cell_is_submitted_with_its_line_as_a_comment_and_its_own_number() -> None:
    wire = Wire([DONE])
    run(wire)
    [(_, spec)] = wire.submitted
    assert spec.cell.code == "# %%gpulayer --worker box\nx = 1\n"
    assert (spec.cell.execution_count, spec.cell.session, spec.timeout_s) == (7, "s", 9.0)
    assert spec.cell.bundle == MANIFEST.digest
    assert spec.requirements == Requirements(worker="box")


def test_name_idle_timeout_and_notebook_travel_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """VS Code tells the notebook's path in a variable of its own, and no cell's id."""
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    path = tmp_path / "demo.ipynb"
    path.touch()
    shell = SimpleNamespace(displayhook=SHELL.displayhook, user_ns={"__vsc_ipynb_file__": str(path)})
    for options, name, idle_timeout_s in (
        (CellOptions(requirements=Requirements()), "cell, demo.ipynb", 1800.0),
        (CellOptions(requirements=Requirements(), name="sweep", session="s", idle_timeout_s=60.0), "sweep", 60.0),
    ):
        wire = Wire([DONE])
        CellRunner(wire, Source()).submit(shell, "", "1", options, StatusLine(shell), Stop())  # type: ignore[arg-type]
        [(_, spec)] = wire.submitted
        assert (spec.name, spec.cell.idle_timeout_s) == (name, idle_timeout_s)
        assert (spec.notebook, spec.cell_id) == (str(path), "")


def test_a_folder_without_files_is_no_bundle() -> None:
    wire = Wire([DONE])
    run(wire, Source(files=False))
    assert wire.submitted[0][1].cell.bundle == ""


def test_what_lacks_is_sent_and_the_same_job_asked_for_again() -> None:
    wire, source = Wire([Refused(n=1, problem=UNKNOWN)], [DONE]), Source()
    run(wire, source)
    assert source.sent == 1
    assert wire.submitted[0] == wire.submitted[1]  # the key too
    assert len(wire.left) == 2  # nobody waits for the first answer any more


def test_a_refusal_is_raised_and_nothing_is_followed() -> None:
    problem = Problem(status=507, code="store_failed", title="the control plane could not write")
    wire = Wire([Refused(n=1, problem=problem)])
    with pytest.raises(RequestRefused, match="could not write"):
        run(wire)
    assert wire.left == [wire.subscription]


def test_a_control_plane_that_can_not_be_had_is_raised() -> None:
    with pytest.raises(ControlPlaneError, match="did not start"):
        run(Wire([ControlPlaneError("it did not start")]))


def test_every_cell_is_a_new_job() -> None:
    keys = set()
    for _ in range(3):
        wire = Wire([DONE])
        run(wire)
        keys.add(wire.submitted[0][0])
    assert len(keys) == 3


def test_a_module_that_stayed_at_home_is_named_with_the_remote_error(tmp_path: Path) -> None:
    """Situation 11."""
    for name, text in {".gitignore": "utils.py\n", "utils.py": "", "train.py": ""}.items():
        (tmp_path / name).write_text(text)
    source = Source()
    source.bundle = scan(tmp_path)
    content = {"ename": "ModuleNotFoundError", "evalue": "No module named 'utils'", "traceback": ["remote lines"]}
    parts = [json.dumps(part).encode() for part in ({"msg_type": "error"}, {}, {}, content)]
    chunk = Chunk(n=1, attempt="a", offset=0, data=encode_kernel(parts))
    error = "ModuleNotFoundError: No module named 'utils'"
    failed = update(State.FAILED, attempt="a", outcome=Outcome(state=State.FAILED, error=error))
    with pytest.raises(RemoteError) as raised:
        run(Wire([update(State.RUNNING, attempt="a"), chunk, failed]), source)
    assert raised.value._render_traceback_() == [
        "remote lines",
        "gpulayer: utils.py was left out by .gitignore line 1 (utils.py); --include utils.py takes it along",
    ]


def test_a_body_that_begins_with_another_magic_stays_as_it_is() -> None:
    assert numbered_like_home("-x", "%%bash\necho hi") == "%%bash\necho hi"
    assert numbered_like_home("-x", "\n  %%time\n1") == "\n  %%time\n1"
    assert numbered_like_home("-x", "a\nb").splitlines() == ["# %%gpulayer -x", "a", "b"]


# ---------------------------------------------------------------- following


def test_output_is_shown_and_the_end_seen(capsys: pytest.CaptureFixture[str]) -> None:
    chunk = stream("one\n")
    script = [update(State.ASSIGNED, attempt="a"), update(State.RUNNING, attempt="a"), chunk]
    wire = Wire([*script, stream("two\n", offset=len(chunk.data)), DONE])
    assert run(wire).state is State.SUCCEEDED
    assert capsys.readouterr().out == "one\ntwo\n"
    assert wire.left == [wire.subscription]


def test_a_job_that_is_over_with_its_first_answer_is_over() -> None:
    reasons = (Reason(worker="", code="worker_unknown", text="no worker is named 'box'"),)
    with pytest.raises(JobRejected, match="no eligible worker"):
        run(Wire([update(State.REJECTED, worker=None, reasons=reasons)]))


def test_output_that_comes_before_the_first_answer_is_not_lost(capsys: pytest.CaptureFixture[str]) -> None:
    """As after a break of the connection, when the same submission finds its job running."""
    run(Wire([stream("early\n"), DONE]))
    assert capsys.readouterr().out == "early\n"


def test_a_new_attempts_output_begins_anew(capsys: pytest.CaptureFixture[str]) -> None:
    half = Chunk(n=1, attempt="a", offset=0, data=stream("never whole\n").data[:9])
    run(Wire([update(State.RUNNING, attempt="a"), half, stream("again\n", attempt="b"), DONE]))
    assert capsys.readouterr().out == "again\n"


def test_a_problem_in_between_is_raised() -> None:
    gone = Refused(n=1, problem=Problem(status=404, code="no_such_job", title="no job k3f9"))
    with pytest.raises(RequestRefused, match="no job k3f9"):
        run(Wire([update(State.RUNNING, attempt="a"), gone]))


# ---------------------------------------------------------------- Stop


def wanted() -> Stop:
    """A Stop that was pressed once there may be a job."""
    stop = Stop()
    stop.wanted = True
    return stop


def test_stop_cancels_the_job_and_shows_its_end() -> None:
    wire = Wire([update(State.RUNNING, attempt="a")])
    wire.on_cancel = [update(State.CANCELLED, attempt="a", outcome=Outcome(state=State.CANCELLED))]
    with pytest.raises(JobCancelled, match="job k3f9 was cancelled"):
        run(wire, stop=wanted())
    assert wire.cancelled == ["k3f9"]


def test_stop_before_the_control_plane_answers_is_raised_and_nothing_asked_for_again() -> None:
    wire = Wire([])
    wire.ready = False
    with pytest.raises(KeyboardInterrupt):
        run(wire, stop=wanted())
    assert wire.left == [wire.subscription]


def test_stop_while_files_have_to_be_sent_is_raised() -> None:
    wire, source = Wire([Refused(n=1, problem=UNKNOWN)]), Source()
    with pytest.raises(KeyboardInterrupt):
        run(wire, source, stop=wanted())
    assert source.sent == 0


def test_stop_under_attach_is_raised_and_cancels_nothing() -> None:
    wire = Wire([update(State.RUNNING, attempt="a")])
    runner = CellRunner(wire, Source())  # type: ignore[arg-type]
    subscription = wire.submit(JobSpec(cell=None), "k")  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        runner.follow(SHELL, subscription, StatusLine(SHELL), 10, wanted(), cancels=False)
    assert wire.cancelled == []
    assert wire.left == [subscription]


# ---------------------------------------------------------------- how it ended


def replay(error: RemoteError | None = None) -> Any:
    return SimpleNamespace(error=error)


REMOTE = RemoteError.named("ValueError", "bad", ["the remote traceback"])


def test_what_the_cell_raised_is_raised() -> None:
    failed = view(State.FAILED, outcome=Outcome(state=State.FAILED, error="ValueError: bad"))
    with pytest.raises(RemoteError) as raised:
        judge(failed, replay(REMOTE))
    assert raised.value is REMOTE


def test_what_happened_around_the_cell_is_said_after_what_it_raised() -> None:
    failed = view(State.FAILED, outcome=Outcome(state=State.FAILED, error="KeyboardInterrupt", problem="timed out"))
    with pytest.raises(JobError, match="job k3f9 failed on box: timed out") as raised:
        judge(failed, replay(REMOTE))
    assert raised.value._render_traceback_() == ["the remote traceback", "gpulayer: job k3f9 failed on box: timed out"]


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (Outcome(state=State.FAILED, problem="the kernel exited with code 3"), "the kernel exited with code 3"),
        (Outcome(state=State.FAILED, error="UsageError: x"), "UsageError: x"),
        (None, "no reason was given"),
    ],
)
def test_a_failure_without_an_exception_says_why(outcome: Outcome | None, said: str) -> None:
    with pytest.raises(JobError, match=f"job k3f9 failed on box: {said}"):
        judge(view(State.FAILED, outcome=outcome), replay())


def test_a_forced_end_of_a_cancelled_job_is_said() -> None:
    outcome = Outcome(state=State.CANCELLED, problem="it did not stop within 5 s")
    with pytest.raises(JobCancelled, match="job k3f9 was cancelled: it did not stop within 5 s"):
        judge(view(State.CANCELLED, outcome=outcome), replay())


def test_a_job_whose_end_was_not_seen_is_no_success() -> None:
    with pytest.raises(ControlPlaneError):
        judge(None, replay())
