"""The commands, against a control plane that the tests play."""

from __future__ import annotations

import io
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gpulayer.cli.__main__ import run
from gpulayer.client.asks import Listening, NewToken, TokenView
from gpulayer.client.errors import RequestRefused
from gpulayer.client.submission import Input, Source
from gpulayer.protocol.calls import CallsCount, MapView
from gpulayer.protocol.types import AttemptView, JobView, Outcome, Problem, Reason, Requirements, State, TaskView
from gpulayer.source import Limits

Gpulayer = Callable[..., Any]


def test_every_option_of_submit(
    gpulayer: Gpulayer, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FROM_HERE", "there")
    (tmp_path / "x").touch()
    line = (
        f"--source src --include a --exclude b --max-file 1GB --max-bundle 2GB --max-files 7 --input {tmp_path}/x:in/ "
        "--output o/** --env A=b=c --env FROM_HERE --cwd deep --accelerator cuda --devices 2 --worker box --retries 1 "
        "--timeout 10m --grace 1s --priority -3 --name n --label k=v --idempotency-key key --after a81c --array 0-3"
    )
    said = gpulayer("submit", "-d", *line.split(), "--", "python", "train.py", "--", "--lr")
    assert (said.code, said.out, said.err) == (0, "k3f9\n", "")
    command = client.commands[0]
    assert command.argv == ["python", "train.py", "--", "--lr"]
    limits = Limits(bundle_bytes=2_000_000_000, file_bytes=1_000_000_000, files=7)
    assert command.source == Source(folder="src", include=("a",), exclude=("b",), limits=limits)
    assert command.inputs == [Input(source=f"{tmp_path}/x", target="in/x")]
    assert (command.outputs, command.env, command.cwd) == (["o/**"], {"A": "b=c", "FROM_HERE": "there"}, "deep")
    assert (command.accelerator, command.devices, command.worker) == ("cuda", 2, "box")
    assert (command.retries, command.timeout_s, command.grace_s, command.priority) == (1, 600, 1, -3)
    assert (command.name, command.labels, command.key, command.after) == ("n", {"k": "v"}, "key", ["a81c"])
    assert command.array == "0-3"


def test_a_command_needs_no_dashes_and_a_line_may_take_its_place(gpulayer: Gpulayer, client: Any) -> None:
    gpulayer("submit", "-d", "ls", "-l", "--all")
    gpulayer("submit", "-d", "--shell", "a | b")
    assert [command.argv for command in client.commands] == [["ls", "-l", "--all"], "a | b"]


def test_the_end_of_a_job_is_said_and_told_as_json(gpulayer: Gpulayer, client: Any) -> None:
    client.views["k3f9"] = JobView(
        id="k3f9",
        state=State.REJECTED,
        reasons=(
            Reason(worker="box", code="device_kind", text="no cuda", wanted=1, found=0),
            Reason(worker="box", code="framework", text="framework 'jax' not installed", remedy="install jax on box"),
        ),
        nearest="install jax on box",
    )
    said = gpulayer("submit", "--", "true")
    assert (said.code, said.out) == (69, "")
    assert said.err.splitlines() == [
        "✗ no eligible worker · job k3f9",
        "  box  no cuda",
        "       framework 'jax' not installed",
        "nearest: install jax on box",
    ]
    told = json.loads(gpulayer("submit", "--json", "--", "true").out)
    assert (told["id"], told["state"], told["exit_code"], told["downloaded"]) == ("k3f9", "rejected", 69, [])
    assert [(each["code"], each["wanted"], each["remedy"]) for each in told["reasons"]] == [
        ("device_kind", 1, ""), ("framework", None, "install jax on box"),
    ]  # fmt: skip
    assert json.loads(gpulayer("submit", "--json", "-d", "--", "true").out)["id"] == "k3f9"
    left = gpulayer("submit", "-d", "--", "true")
    assert (left.code, left.out, left.err) == (69, "k3f9\n", said.err)
    assert gpulayer("submit", "-d", "-q", "--", "true").err.splitlines() == said.err.splitlines()[1:]


def test_where_the_output_of_tasks_side_by_side_is(gpulayer: Gpulayer, client: Any) -> None:
    client.views["k3f9"] = JobView(id="k3f9", state=State.SUCCEEDED, tasks={"succeeded": 2}, attempt=None)
    said = gpulayer("submit", "--nodes", "2", "--", "true")
    assert (said.code, said.out) == (0, "")
    assert said.err.splitlines() == ["✓ 2 of 2 done · job k3f9", "  output: gpulayer job logs k3f9 --index N"]


def test_a_list_is_asked_for_page_by_page(gpulayer: Gpulayer, client: Any) -> None:
    client.answers["GET /v1/jobs"] = [client.views["k3f9"]]
    said = gpulayer("job", "list", "--state", "done", "--label", "k=v", "--name", "x", "-n", "5")
    assert client.asked == ["GET /v1/jobs?limit=5&state=succeeded&label=k%3Dv&name=x"]
    assert "✓  k3f9  train.py" in said.out
    assert [job["id"] for job in json.loads(gpulayer("job", "list", "--all", "--json").out)] == ["k3f9"]
    assert client.asked[-1] == "GET /v1/jobs?limit=1000"
    client.answers["GET /v1/jobs"] = []
    assert gpulayer("job", "list", "--state", "failed").out == "no jobs with state failed\n"
    assert gpulayer("job", "list", "--label", "k").code == 2


def test_all_that_is_known_of_one(gpulayer: Gpulayer, client: Any) -> None:
    outcome = Outcome(
        state=State.FAILED,
        exit_code=3,
        peak_rss_bytes=2_000_000,
        peak_device_bytes=5_000_000_000,
        cpu_s=1.5,
        wall_s=2.0,
    )
    view = replace(
        client.views["k3f9"], state=State.FAILED, outcome=outcome, labels={"k": "v"}, command="python train.py"
    )
    client.views["k3f9"] = view
    lost = AttemptView(id="k3f9-1", index=0, number=1, worker="old", over=True, problem="old was lost", started_at=1.0)
    client.answers["GET /v1/jobs/k3f9/attempts"] = [
        replace(lost, ended_at=2.0),
        AttemptView(id="k3f9-2", index=0, number=2, worker="box", outcome=outcome, over=True),
    ]
    shown = gpulayer("job", "show", "k3f9").out
    for words in ("exit code 3", "k=v", "python train.py", "old was lost", "2.0 MB", "5.0 GB", "1.5 s", "2.0 s"):
        assert words in shown
    record = json.loads(gpulayer("job", "show", "k3f9", "--json").out)["attempt_records"][1]
    assert record["outcome"]["peak_device_bytes"] == 5_000_000_000


def test_of_an_array_those_that_are_not_done(gpulayer: Gpulayer, client: Any) -> None:
    client.views["k3f9"] = replace(client.views["k3f9"], state=State.RUNNING, tasks={"succeeded": 1, "failed": 1})
    client.answers["GET /v1/jobs/k3f9/attempts"] = []
    client.answers["GET /v1/jobs/k3f9/tasks"] = [
        TaskView(index=0, state=State.SUCCEEDED),
        TaskView(index=1, state=State.FAILED, worker="box", outcome=Outcome(state=State.FAILED, signal=11)),
    ]
    shown = gpulayer("job", "show", "k3f9").out.splitlines()
    assert shown[0] == "● 1 of 2 done · 1 failed · job k3f9"
    assert "  ✗ task 1 failed on box · ended by SIGSEGV" in shown


def test_why_one_waits_and_what_would_help(gpulayer: Gpulayer, client: Any) -> None:
    client.views["k3f9"] = JobView(
        id="k3f9",
        state=State.QUEUED,
        requirements=Requirements(accelerator="cuda", devices=2, frameworks=("jax",)),
        reasons=(
            Reason(worker="gpu-box-1", code="devices_busy", text="cuda:0 busy: train.py by ana", temporary=True),
            Reason(worker="gpu-box-1", code="slots", text="all 2 slots busy", temporary=True),
            Reason(worker="mac", code="device_kind", text="no cuda device"),
        ),
        nearest="wait for train.py",
    )
    client.answers["GET /v1/jobs/k3f9/attempts"] = []
    shown = gpulayer("job", "show", "k3f9").out.splitlines()
    assert [line for line in shown if line.split()[:1] == ["needs"]] == ["  needs      2 cuda · jax"]
    assert shown[-4:] == [
        "  gpu-box-1  cuda:0 busy: train.py by ana",
        "             all 2 slots busy",
        "  mac        no cuda device",
        "nearest: wait for train.py",
    ]


def test_of_several_machines_at_once_each_is_a_task(gpulayer: Gpulayer, client: Any) -> None:
    client.views["k3f9"] = replace(
        client.views["k3f9"], state=State.RUNNING, tasks={"running": 2}, requirements=Requirements(nodes=2)
    )
    client.answers["GET /v1/jobs/k3f9/attempts"] = []
    client.answers["GET /v1/jobs/k3f9/tasks"] = [
        TaskView(index=n, state=State.RUNNING, worker=name) for n, name in enumerate(("box", "mac"))
    ]
    shown = gpulayer("job", "show", "k3f9").out.splitlines()
    assert shown[0] == "● 0 of 2 done · 2 running · job k3f9"
    assert shown[-2:] == ["  ● node 0 running on box", "  ● node 1 running on mac"]


def test_limits_of_a_tokens_owner(gpulayer: Gpulayer, client: Any) -> None:
    made = NewToken(id="t1", token="secret", role="submitter", name="students", max_running=4, max_devices=1)
    client.answers["POST /v1/tokens"] = made
    client.answers["GET /v1/listen"] = Listening()
    said = gpulayer("token", "create", "--role", "submitter", "--max-running", "4", "--max-devices", "1")
    assert (client.bodies[0]["max_running"], client.bodies[0]["max_devices"]) == (4, 1)
    assert "at most 4 tasks, at most 1 device" in said.err
    client.answers["GET /v1/tokens"] = [
        TokenView(id="t1", role="submitter", name="students", state="live", max_running=4),
        TokenView(id="t2", role="reader", name="eve", state="live"),
    ]
    lines = gpulayer("token", "list").out.splitlines()
    assert [line.split("  ")[-1].strip() for line in lines] == ["limits", "4 tasks", "–"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--role submitter --max-running 0", "--max-running: 0 is too few: at least 1"),
        ("--role submitter --max-devices some", "--max-devices: 'some' is no whole number"),
        (
            "--role join --max-running 2",
            "--max-running and --max-devices are of tokens that submit jobs, not of join ones",
        ),
    ],
)
def test_limits_that_are_none(gpulayer: Gpulayer, client: Any, words: str, line: str) -> None:
    said = gpulayer("token", "create", *words.split())
    assert (said.code, said.err, client.asked) == (2, f"gpulayer: {line}\n", [])


def test_logs(gpulayer: Gpulayer, client: Any) -> None:
    assert gpulayer("job", "logs", "k3f9", "--stream", "stderr", "--index", "2", "--tail", "1kB").out == "the log\n"
    assert client.asked == ["logs k3f9 {'stream': 'stderr', 'index': 2, 'tail_bytes': 1000}"]
    client.streamed = [("stdout", b"a\n"), ("stderr", b"b\n")]
    assert gpulayer("job", "logs", "-f", "k3f9").out == "a\nb\n"
    assert gpulayer("job", "logs", "-f", "k3f9", "--stream", "stderr").out == "b\n"
    assert gpulayer("job", "logs", "k3f9", "--stream", "both").code == 2
    assert gpulayer("job", "logs", "-f", "k3f9", "--tail", "1kB").code == 2


def test_waiting(gpulayer: Gpulayer, client: Any) -> None:
    failed = replace(
        client.views["k3f9"], id="a81c", state=State.FAILED, outcome=Outcome(state=State.FAILED, exit_code=9)
    )
    client.views["a81c"] = failed
    client.views["zzzz"] = replace(failed, id="zzzz", state=State.RUNNING)
    assert gpulayer("job", "wait", "k3f9").code == 0
    assert gpulayer("job", "wait", "a81c").code == 9
    assert gpulayer("job", "wait", "a81c", "k3f9").code == 1
    assert gpulayer("job", "wait", "zzzz", "a81c", "--timeout", "1s").code == 75
    assert client.asked[-1] == "wait zzzz a81c 1.0"
    assert gpulayer("job", "wait", "-q", "a81c").err == ""


WARM = JobView(
    id="a81c",
    kind="calls",
    state=State.RUNNING,
    name="f",
    tasks={"running": 1},
    calls=CallsCount(maps=12, calls=40, done=40, runners=1, idle_since=1.0),
)


def test_a_function_with_its_maps(gpulayer: Gpulayer, client: Any) -> None:
    client.views["a81c"] = WARM
    one = MapView(id="a81c.12", job="a81c", state=State.SUCCEEDED, total=40, done=40, ended_at=1.0)
    client.answers = {
        "GET /v1/jobs/a81c/attempts": [],
        "GET /v1/jobs/a81c/tasks": [
            TaskView(index=0, state=State.RUNNING, worker="box"),
            TaskView(index=1, state=State.CANCELLED),
        ],
        "GET /v1/maps": [one],
        "GET /v1/maps/a81c.12": one,
        "POST /v1/maps/a81c.12/cancel": one,
    }
    shown = gpulayer("job", "show", "a81c").out
    assert "○ 40 calls done · 1 runner, idle" in shown
    assert "● runner 0 running on box" in shown
    assert "runner 1" not in shown  # it was not needed
    assert "✓  a81c.12  40 calls    40" in shown
    assert "and 11 older" in shown
    assert "GET /v1/maps?job=a81c&limit=10" in client.asked
    assert gpulayer("job", "show", "a81c.12").out.startswith("✓ done · map a81c.12 of 40 calls · 40 done")
    assert gpulayer("job", "cancel", "a81c.12").out.startswith("✓ done · map a81c.12")
    assert "a81c.12 is a map of job a81c; what its calls print" in gpulayer("job", "logs", "a81c.12").err


def test_a_function_is_waited_for_until_its_calls_are_done(gpulayer: Gpulayer, client: Any) -> None:
    client.views["a81c"] = WARM
    assert "○ 40 calls done · 1 runner, idle" in gpulayer("job", "wait", "a81c").err
    busy = replace(WARM, calls=CallsCount(maps=1, calls=4, done=1, running=1, runners=1))
    client.views["a81c"] = client.answers["GET /v1/jobs/a81c"] = busy
    assert "● 1 of 4 calls done" in (said := gpulayer("job", "wait", "a81c", "--timeout", "0.001s")).err
    assert said.code == 75


def test_downloading(gpulayer: Gpulayer, client: Any, tmp_path: Path) -> None:
    assert "job k3f9 left no files" in gpulayer("job", "download", "k3f9").err
    client.came.written.append(("a", 3))
    client.came.beside.append(("b", "b.from-k3f9"))
    said = gpulayer("job", "download", "k3f9", "--to", str(tmp_path), "--overwrite")
    assert said.err.splitlines() == [
        "✓ 1 file, 3 B: a",
        "✓ b was changed here meanwhile: kept; the job's is b.from-k3f9",
    ]
    assert client.asked[-1] == f"download k3f9 to {tmp_path} replaces=True"
    client.came.refused.append(("c", "a folder is there"))
    said = gpulayer("job", "download", "k3f9", "--json")
    assert (said.code, json.loads(said.out)["refused"]) == (1, [{"path": "c", "why": "a folder is there"}])


def test_tokens(gpulayer: Gpulayer, client: Any) -> None:
    client.answers["POST /v1/tokens"] = NewToken(id="t1", token="secret", role="submitter", name="alice")
    client.answers["GET /v1/listen"] = Listening(host="10.0.0.5", port=8443, fingerprint="SHA256:ab")
    said = gpulayer("token", "create", "--role", "submitter", "--name", "alice", "--expires", "30d")
    assert said.out == "secret\n"
    assert client.bodies[0] == {"role": "submitter", "name": "alice", "expires_s": 2_592_000.0, "single_use": False}
    there = "export GPULAYER_URL=https://10.0.0.5:8443 GPULAYER_FINGERPRINT=SHA256:ab GPULAYER_TOKEN=…"
    assert said.err.splitlines()[-1].strip() == there
    said = gpulayer("token", "create", "--role", "join", "--single-use")
    assert client.bodies[2] == {"role": "join", "name": "", "expires_s": 3600.0, "single_use": True}
    paste = "gpulayer join https://10.0.0.5:8443 --token … --tls-fingerprint SHA256:ab"
    assert said.err.splitlines()[-1].strip() == paste
    client.answers["GET /v1/listen"] = Listening()
    assert "gpulayer up says" in gpulayer("token", "create", "--role", "reader").err
    assert "did you mean reader?" in gpulayer("token", "create", "--role", "reder").err
    client.answers["GET /v1/tokens"] = [
        TokenView(id="t1", role="submitter", name="alice", state="live"),
        TokenView(id="t2", role="join", name="old", state="revoked"),
    ]
    assert [line.split()[:2] for line in gpulayer("token", "list").out.splitlines()[1:]] == [["t1", "alice"]]
    assert len(json.loads(gpulayer("token", "list", "--all", "--json").out)) == 2
    client.answers["DELETE /v1/tokens/alice"] = None
    assert gpulayer("token", "revoke", "alice", "--workers").code == 0
    assert client.asked[-1] == "DELETE /v1/tokens/alice?workers=true"


def test_an_interrupt_while_it_is_submitted_loses_no_job(gpulayer: Gpulayer, client: Any) -> None:
    client.interrupted = signal.SIGTERM
    said = gpulayer("submit", "-d", "--", "true")
    assert (said.code, said.out) == (143, "k3f9\n")


def test_where_files_could_not_go_nothing_is_submitted(gpulayer: Gpulayer, client: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = gpulayer("submit", "--to", str(tmp_path / "file"), "--output", "x", "--", "true")
    assert (said.code, client.commands) == (2, [])
    assert said.err == f"gpulayer: --to {tmp_path}/file: this is no folder, and files can't come into it\n"


@pytest.mark.parametrize(("encoding", "bytes_"), [("utf-8", "ü漢".encode()), ("latin-1", b"\\u00fc\\u6f22")])
def test_json_is_json_whatever_letters_the_terminal_has(
    client: Any, monkeypatch: pytest.MonkeyPatch, encoding: str, bytes_: bytes
) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding=encoding, write_through=True))
    client.views["k3f9"] = replace(client.views["k3f9"], name="ü漢")
    client.answers["GET /v1/jobs"] = list(client.views.values())
    assert run(["job", "list", "--json"]) == 0
    assert bytes_ in raw.getvalue()
    assert json.loads(raw.getvalue())[0]["name"] == "ü漢"
    assert run(["job", "list"]) == 0
    assert (b"\\u6f22" if encoding == "latin-1" else "漢".encode()) in raw.getvalue()


def test_what_can_be_no_name_is_no_job(gpulayer: Gpulayer, client: Any) -> None:
    def status(name: str) -> JobView:
        raise RequestRefused(Problem(status=404, code="no_such_path", title="nothing is there"))

    client.status = status
    said = gpulayer("job", "show", "../\x1b[2J")
    assert (said.code, said.err) == (2, "gpulayer: no job ../\\x1b[2J; gpulayer job list shows them\n")
