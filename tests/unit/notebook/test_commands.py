"""The commands of `%gpulayer`, against a control plane that is played by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpulayer.client.asks import Ask
from gpulayer.client.errors import RequestRefused
from gpulayer.notebook.commands import command_parser, line_help, run_line
from gpulayer.notebook.options import COMMANDS, HelpWanted, NotebookSession, UsageError, parse_cell_line
from gpulayer.protocol.types import (
    Explanation,
    Inventory,
    JobView,
    Placement,
    Problem,
    Reason,
    Requirements,
    SessionView,
    State,
    WorkerView,
)

INVENTORY = Inventory(host="h", os="linux", arch="a", cpu_cores=2, ram_bytes=8_000_000_000, python="3")


class Plane:
    """What a control plane knows."""

    def __init__(self) -> None:
        self.job_views = [
            JobView(id="k3f9", state=State.RUNNING, name="cell", worker="alpha"),
            JobView(id="a81c", state=State.QUEUED, name="cell"),
        ]
        self.names = ["train", "eval"]
        self.asked: list[str] = []

    def jobs(self, limit: int) -> list[JobView]:
        self.asked.append(f"jobs {limit}")
        return self.job_views[:limit]

    def job(self, name: str) -> JobView:
        self.asked.append(f"job {name}")
        found = next((job for job in self.job_views if job.id == name), None)
        if found is None:
            raise RequestRefused(Problem(status=404, code="no_such_job", title=f"no job {name}"))
        if found.state is State.QUEUED:
            reasons = (Reason(worker="alpha", code="slots", text="all 2 slots busy", temporary=True),)
            return JobView(id=found.id, state=found.state, name=found.name, reasons=reasons)
        return found

    def ask(self, ask: Ask[Any]) -> Explanation:
        self.asked.append(f"{ask.method} {ask.path} {(ask.content or b'').decode()}")
        reasons = (Reason(worker="alpha", code="device_kind", text="no cuda device"),)
        return Explanation(placement=Placement.REJECTED, reasons=reasons, nearest="add a machine")

    def cancel(self, name: str) -> JobView:
        self.asked.append(f"cancel {name}")
        return JobView(id=name, state=State.RUNNING, worker="alpha", cancelling=True)

    def workers(self) -> list[WorkerView]:
        facts: dict[str, Any] = {"connected": True, "slots": 2, "slots_free": 2, "inventory": INVENTORY}
        return [WorkerView(id=name, name=name, **facts) for name in ("alpha", "beta")]

    def sessions(self) -> list[SessionView]:
        return [SessionView(id=name, name=name, worker="alpha", connected=True) for name in self.names]

    def release(self, name: str) -> None:
        if name not in self.names:
            raise RequestRefused(Problem(status=404, code="no_such_session", title=f"no session {name!r}"))
        self.names.remove(name)


class Home:
    """The magics of a shell."""

    def __init__(self) -> None:
        self.plane = Plane()
        self.shell = SimpleNamespace()
        self.session: NotebookSession | None = None

    def api(self) -> Any:
        return self.plane

    def runner(self) -> Any:
        raise AssertionError("nothing of this runs a cell")


@pytest.fixture
def home() -> Home:
    return Home()


def said(home: Home, line: str, capsys: pytest.CaptureFixture[str]) -> str:
    run_line(home, line)
    return capsys.readouterr().out


def refused(home: Home, line: str) -> str:
    with pytest.raises(UsageError) as error:
        run_line(home, line)
    assert "\n" not in str(error.value)
    return str(error.value)


# ---------------------------------------------------------------- help


@pytest.mark.parametrize("line", ["", "-h", "--help", "help"])
def test_help_names_every_command_and_the_cells_options(home: Home, line: str) -> None:
    with pytest.raises(HelpWanted) as wanted:
        run_line(home, line)
    text = str(wanted.value)
    assert text == line_help()
    assert [name for name in COMMANDS if f"\n  {name}" not in text] == []
    assert "--accelerator KIND" in text
    assert "%%gpulayer --accelerator cuda" in text


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_each_command_has_its_own_help_with_examples(home: Home, name: str, flag: str) -> None:
    with pytest.raises(HelpWanted) as wanted:
        run_line(home, f"{name} {flag}")
    text = str(wanted.value)
    assert text.startswith(f"usage: %gpulayer {name}")
    assert f"examples:\n  %gpulayer {name}" in text


def test_every_example_can_be_run() -> None:
    for name in COMMANDS:
        help_text = command_parser(name).format_help()
        for line in help_text.partition("examples:\n")[2].splitlines():
            words = line.split("   ")[0].split()
            assert words[:2] == ["%gpulayer", name]
            command_parser(name).parse_args(words[2:])
    for line in line_help().splitlines():
        if line.startswith("  %%gpulayer "):
            parse_cell_line(line.removeprefix("  %%gpulayer ").split("   ")[0])
        elif line.startswith("  %gpulayer "):
            _, name, *words = line.split("   ")[0].split()
            command_parser(name).parse_args(words)


# ---------------------------------------------------------------- what can't be understood


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("sttus", "unknown command 'sttus'; did you mean status? (%gpulayer -h)"),
        ("xyzzy", "unknown command 'xyzzy': one of status, jobs, logs, attach"),
        ("--worker box", "options belong to a cell: %%gpulayer --worker box, with two % in its first line"),
        ("status now", "%gpulayer status takes nothing more, got 'now'"),
        ("attach", "%gpulayer attach JOB: JOB is missing (%gpulayer attach -h)"),
        ("release", "%gpulayer release NAME: NAME is missing"),
        ("jobs -n many", "-n: 'many' is no whole number (%gpulayer jobs -h shows the options)"),
        ("jobs --al", "unknown option --al; did you mean --all? (%gpulayer jobs -h lists them)"),
        ("logs k3f9 --max-output much", "'much' is no size"),
        ("attach 'k3", "the line can't be read: No closing quotation"),
        ("session train --devices 2", "--devices counts accelerators"),
        ("explain --min-vram 40GB", "--min-vram is of devices: name their kind too, like --accelerator cuda"),
        ("explain --nods 2", "unknown option --nods; did you mean --nodes? (%gpulayer explain -h lists them)"),
        ("session train --nodes 2", "--nodes: a cell runs on one machine; a command on several: gpulayer submit"),
        ("session --framework jax", "name the session: %gpulayer session NAME, then the options"),
        ("session --worker alpha", "name the session: %gpulayer session NAME, then the options"),
        ("session train --off", "--off ends the notebook's session; to end the kernel: %gpulayer release train"),
        ("session ''", "'' is no name"),
    ],
)
def test_a_wrong_line_is_one_line_that_helps(home: Home, line: str, text: str) -> None:
    assert text in refused(home, line)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("attach k3f8", "no job k3f8; did you mean k3f9? the last ones are k3f9, a81c"),
        ("logs zzzz", "no job zzzz; the last ones are k3f9, a81c"),
        ("cancel zzzz", "no job zzzz; the last ones are k3f9, a81c"),
        ("release trian", "no session trian; did you mean train? open are train, eval"),
        ("session x --worker alhpa", "no worker alhpa; did you mean alpha? there are alpha, beta"),
    ],
)
def test_what_is_not_there_is_told_with_what_is(home: Home, line: str, text: str) -> None:
    assert refused(home, line) == text


def test_where_there_is_nothing_that_is_said(home: Home) -> None:
    home.plane.job_views, home.plane.names = [], []
    assert refused(home, "attach k3f9") == "no job k3f9: there are none yet"
    assert refused(home, "release train") == "no session train: none is open"


def test_of_many_a_few_are_named(home: Home) -> None:
    home.plane.names = [f"s{n}" for n in range(10)]
    assert refused(home, "release zzzz") == "no session zzzz; open are s0, s1, s2, s3, s4, s5 and 4 more"


def test_another_refusal_is_told_as_it_is(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(name: str) -> None:
        raise RequestRefused(Problem(status=507, code="store_failed", title="the control plane could not write"))

    monkeypatch.setattr(home.plane, "release", busy)
    monkeypatch.setattr(home.plane, "job", busy)
    for line in ("release train", "attach k3f9"):
        with pytest.raises(RequestRefused, match="could not write"):
            run_line(home, line)


# ---------------------------------------------------------------- looking


def test_jobs_are_the_last_ten_and_those_that_wait_say_why(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(home, "jobs", capsys)
    assert "k3f9" in text
    assert "    alpha: all 2 slots busy" in text
    assert home.plane.asked == ["jobs 10", "job a81c"]


def test_jobs_of_a_number_say_that_there_are_more(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(home, "jobs -n 1", capsys)
    assert "a81c" not in text
    assert text.endswith("the last 1; more with -n N or --all\n")
    assert "a81c" in said(home, "jobs --all", capsys)
    assert home.plane.asked[-2:] == ["jobs 1000", "job a81c"]


def test_where_nothing_is_that_is_said(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    home.plane.job_views, home.plane.names = [], []
    assert said(home, "jobs", capsys) == "no jobs yet\n"
    assert said(home, "sessions", capsys) == "no sessions: %%gpulayer --session NAME opens one\n"


def test_status_fleet_and_sessions(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(home, "fleet", capsys).splitlines()[0] == "● alpha · 2 of 2 slots free"
    assert "train" in said(home, "sessions", capsys)
    lines = said(home, "status", capsys).splitlines()
    assert lines[0] == "machines · 2 online"
    assert "jobs · 2 live" in lines
    assert "sessions" in lines


def test_cancel_tells_the_jobs_state(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(home, "cancel k3f9", capsys) == "□ cancelling on alpha · job k3f9\n"


def test_explain_is_a_table(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(home, "explain --accelerator cuda --framework 'torch>=2.4' --nodes 2", capsys).splitlines() == [
        "scheduling: no eligible worker",
        "  alpha  no cuda device",
        "nearest: add a machine",
    ]
    wish = '{"requirements":{"accelerator":"cuda","frameworks":["torch>=2.4"],"nodes":2},"wait_for_worker":false}'
    assert home.plane.asked == [f"POST /v1/explain {wish}"]


# ---------------------------------------------------------------- the notebook's session


def test_a_session_for_the_whole_notebook(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(home, "session", capsys).startswith("no session: each %%gpulayer cell is fresh")
    text = said(home, "session train --accelerator cuda --worker alpha --idle-timeout 2h", capsys)
    assert text == ("session train for all %%gpulayer cells here · cuda · on alpha · ends after 2 h without a cell\n")
    requirements = Requirements(accelerator="cuda", worker="alpha")
    assert home.session == NotebookSession(name="train", requirements=requirements, idle_timeout_s=7200.0)
    assert said(home, "session", capsys) == text
    assert "session train stays" in said(home, "session --off", capsys)
    assert home.session is None
    assert said(home, "session --off", capsys).startswith("no session")


def test_release_ends_it_there(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(home, "release train", capsys).startswith("session train is released")
    assert home.plane.names == ["eval"]
