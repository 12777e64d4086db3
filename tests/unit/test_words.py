"""The words and figures that people read."""

from __future__ import annotations

import pytest

from gpulayer.protocol.types import CallsCount, Device, JobView, Outcome, Reason, Requirements, State
from gpulayer.words import (
    ago,
    calls_of,
    device_name,
    devices_named,
    duration,
    failure,
    limit,
    near_words,
    needs,
    of_size,
    ordinal,
    overall_line,
    peak,
    percent,
    progress_of,
    roughly,
    size,
    state_of,
    status_line,
    symbol_of,
)

GPUS = tuple(Device(uuid=f"u{n}", kind="cuda", index=n, name="RTX 4090") for n in (1, 2))


def job(state: State, **facts: object) -> JobView:
    return JobView(id="k3f9", state=state, **({"worker": "box"} | facts))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0.0 s"),
        (0, "0.0 s"),
        (4.24, "4.2 s"),
        (59.9, "59.9 s"),
        (59.97, "1 min 00 s"),
        (60, "1 min 00 s"),
        (192, "3 min 12 s"),
        (7500, "2 h 05 min"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (999_600, "1.0 MB"),
        (41_000, "41 kB"),
        (5_200_000, "5.2 MB"),
        (1.2e9, "1.2 GB"),
        (3e12, "3.0 TB"),
    ],
)
def test_sizes(count: float, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "just now"), (9, "just now"), (42, "42 s ago"), (130, "2 min ago"), (7300, "2 h ago"), (86_500, "1 day ago")],
)
def test_when(seconds: float, text: str) -> None:
    assert ago(seconds) == text


@pytest.mark.parametrize(("seconds", "text"), [(3.9, "3 s"), (61, "1 min"), (200_000, "2 days")])
def test_how_long_roughly(seconds: float, text: str) -> None:
    assert roughly(seconds) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.5, "0.5 s"), (90, "90 s"), (1800, "30 min"), (7200, "2 h")])
def test_limits_are_told_exactly(seconds: float, text: str) -> None:
    assert limit(seconds) == text


@pytest.mark.parametrize(
    ("name", "text"), [("NVIDIA GeForce RTX 4090", "cuda:1 RTX 4090"), ("Tesla V100", "cuda:1 V100"), ("", "cuda:1")]
)
def test_a_device_is_called_without_its_maker(name: str, text: str) -> None:
    assert device_name(Device(uuid="u", kind="cuda", index=1, name=name)) == text


def test_several_devices_of_one_name_are_one() -> None:
    other = Device(uuid="u9", kind="cuda", index=9, name="NVIDIA T4")
    assert devices_named((*GPUS, other)) == "cuda:1,2 RTX 4090, cuda:9 T4"
    assert devices_named(()) == ""


@pytest.mark.parametrize(
    ("place", "text"), [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (112, "112th"), (21, "21st")]
)
def test_places(place: int, text: str) -> None:
    assert ordinal(place) == text


@pytest.mark.parametrize(
    ("view", "line"),
    [
        (job(State.QUEUED, worker=None), "○ waiting · job k3f9"),
        (
            job(
                State.QUEUED,
                worker=None,
                ahead=1,
                reasons=(
                    Reason(worker="box", code="slots", text="all 2 slots busy", temporary=True),
                    Reason(worker="mac", code="device_count", text="no cuda"),
                ),
            ),
            "○ waiting · 2nd in line · box: all 2 slots busy · mac: no cuda · job k3f9",
        ),
        (
            job(
                State.QUEUED,
                worker=None,
                ahead=1,
                requirements=Requirements(accelerator="cuda", devices=2),
                reasons=(Reason(worker="mac", code="device_count", text="no cuda"),),
            ),
            "○ waiting · 2nd in line for 2 cuda · mac: no cuda · job k3f9",
        ),
        (
            job(State.QUEUED, worker=None, requirements=Requirements(accelerator="cuda")),
            "○ waiting for cuda · job k3f9",
        ),
        (
            job(
                State.QUEUED,
                worker=None,
                reasons=(
                    Reason(worker="mac", code="worker_name", text="is not 'box'"),
                    Reason(worker="box", code="slots", text="all 2 slots busy", temporary=True),
                ),
            ),
            "○ waiting · box: all 2 slots busy · job k3f9",
        ),
        (job(State.ASSIGNED), "◐ starting on box · job k3f9"),
        (job(State.ASSIGNED, progress="fetching 3 files"), "◐ starting on box · fetching 3 files · job k3f9"),
        (job(State.RUNNING, started_at=100.0), "● running on box · 12.3 s · job k3f9"),
        (
            job(State.RUNNING, started_at=100.0, devices=GPUS[:1]),
            "● running on box · cuda:1 RTX 4090 · 12.3 s · job k3f9",
        ),
        (
            job(State.RUNNING, started_at=100.0, devices=GPUS, progress="output waits"),
            "● running on box · cuda:1 RTX 4090 and 1 more · 12.3 s · output waits · job k3f9",
        ),
        (job(State.RUNNING, cancelling=True), "□ cancelling on box · job k3f9"),
        (job(State.QUEUED, worker=None, cancelling=True), "□ cancelling · job k3f9"),
        (job(State.RUNNING, cancelling=True, tasks={"running": 3}), "□ cancelling · job k3f9"),
        (
            job(State.UNREACHABLE),
            "◌ out of reach: box does not answer, the job may go on there · job k3f9",
        ),
        (job(State.LOST), "↻ moved: box is lost, trying again · job k3f9"),
        (
            job(State.FAILED, worker=None, submitted_at=1.0, ended_at=2.0),
            "✗ failed after 1.0 s · job k3f9",
        ),
        (
            job(
                State.SUCCEEDED,
                started_at=100.0,
                ended_at=114.1,
                outcome=Outcome(state=State.SUCCEEDED, peak_rss_bytes=6_200_000_000),
            ),
            "✓ done on box in 14.1 s · peak 6.2 GB · job k3f9",
        ),
        (
            job(State.SUCCEEDED, started_at=1.0, ended_at=2.0, notes=("session 's' had ended: fresh",)),
            "✓ done on box in 1.0 s · session 's' had ended: fresh · job k3f9",
        ),
        (
            job(
                State.FAILED,
                started_at=100.0,
                ended_at=103.0,
                outcome=Outcome(state=State.FAILED, problem="out of memory: …\nand more"),
            ),
            "✗ failed on box after 3.0 s · out of memory: … · job k3f9",
        ),
        (
            job(
                State.FAILED, started_at=1.0, ended_at=2.0, outcome=Outcome(state=State.FAILED, error="ValueError: bad")
            ),
            "✗ failed on box after 1.0 s · ValueError: bad · job k3f9",
        ),
        (job(State.REJECTED, worker=None), "✗ no eligible worker · job k3f9"),
        (job(State.CANCELLED, started_at=1.0, ended_at=2.5), "■ cancelled on box after 1.5 s · job k3f9"),
        (job(State.CANCELLED, worker=None, submitted_at=1.0, ended_at=2.0), "■ cancelled · job k3f9"),
    ],
)
def test_a_job_in_one_line(view: JobView, line: str) -> None:
    assert status_line(view, 112.3) == line


def test_the_files_that_went_along_are_told_while_it_starts() -> None:
    view = job(State.ASSIGNED, progress="starting a kernel")
    line = "◐ starting on box · sent 3 of 214 files, 41 kB · starting a kernel · job k3f9"
    assert status_line(view, 0.0, "sent 3 of 214 files, 41 kB") == line


def test_twenty_machines_are_no_long_line() -> None:
    reasons = tuple(Reason(worker=f"box-{n}", code="slots", text="all 2 slots busy", temporary=True) for n in range(20))
    line = status_line(job(State.QUEUED, worker=None, reasons=reasons), 0.0)
    assert line.startswith("○ waiting · box-0: all 2 slots busy · box-1: all 2 slots busy · ")
    assert "more (%gpulayer status) · job k3f9" in line
    assert len(line) < 220


def test_a_long_error_is_one_short_line() -> None:
    view = job(State.FAILED, ended_at=1.0, outcome=Outcome(state=State.FAILED, error="E: " + "x" * 1000))
    assert len(status_line(view, 0.0)) < 300


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (Outcome(state=State.FAILED, exit_code=3), "exit code 3"),
        (Outcome(state=State.FAILED, signal=9), "ended by SIGKILL"),
        (Outcome(state=State.FAILED, signal=63), "ended by signal 63"),
        (Outcome(state=State.FAILED, exit_code=3, problem="timed out after 1 s"), "timed out after 1 s"),
        (Outcome(state=State.SUCCEEDED, exit_code=0), ""),
    ],
)
def test_why_a_command_failed(outcome: Outcome, words: str) -> None:
    assert failure(JobView(id="k3f9", state=outcome.state, outcome=outcome)) == words


def test_how_far_an_array_is() -> None:
    job = JobView(id="k3f9", state=State.RUNNING, tasks={"succeeded": 31, "running": 4, "failed": 1, "queued": 60})
    assert progress_of(job) == "● 31 of 96 done · 4 running · 1 failed · 60 waiting"


@pytest.mark.parametrize(
    ("state", "tasks", "line"),
    [
        (State.QUEUED, {"queued": 2}, "○ waiting · box: all busy · job k3f9"),
        (State.QUEUED, {"queued": 1, "succeeded": 1}, "○ 1 of 2 done · 1 waiting · job k3f9"),
        (State.REJECTED, {"rejected": 2}, "✗ no eligible worker · job k3f9"),
        (State.RUNNING, {"running": 2}, "● 0 of 2 done · 2 running · job k3f9"),
        (State.RUNNING, {}, "● running on box · 0.0 s · job k3f9"),
    ],
)
def test_a_job_of_many_tasks_in_one_line(state: State, tasks: dict[str, int], line: str) -> None:
    busy = (Reason(worker="box", code="slots", text="all busy", temporary=True),)
    assert overall_line(job(state, tasks=tasks, reasons=busy), 0.0, "job show k3f9") == line


def test_what_was_held_back_is_not_called_impossible() -> None:
    after = Reason(worker="", code="after", text="it was to run after a81c had succeeded")
    assert status_line(JobView(id="k3f9", state=State.REJECTED, reasons=(after,)), 0.0) == "✗ not started · job k3f9"
    assert status_line(JobView(id="k3f9", state=State.REJECTED), 0.0) == "✗ no eligible worker · job k3f9"


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (18.2e9, 24e9, "18.2 of 24 GB"),
        (0.4e9, 24e9, "0.4 of 24 GB"),
        (None, 24e9, "24 GB"),
        (400e6, None, "400 MB"),
        (None, None, ""),
        (0, 0, "0 B"),
    ],
)
def test_a_part_of_a_size(part: float | None, whole: float | None, text: str) -> None:
    assert of_size(part, whole) == text


@pytest.mark.parametrize(("share", "text"), [(0.0, "0%"), (0.974, "97%"), (1.2, "100%"), (-1.0, "0%")])
def test_shares(share: float, text: str) -> None:
    assert percent(share) == text


@pytest.mark.parametrize(
    ("memories", "outcome", "text"),
    [
        ([24_000_000_000], {"peak_device_bytes": 6_200_000_000, "peak_rss_bytes": 1}, "6.2 GB of 24 GB"),
        ([24_000_000_000] * 2, {"peak_device_bytes": 40_000_000_000}, "40.0 GB of 48 GB"),
        ([24_000_000_000, None], {"peak_device_bytes": 6_200_000_000}, "6.2 GB"),
        ([], {"peak_device_bytes": 6_200_000_000}, "6.2 GB"),
        ([24_000_000_000], {"peak_rss_bytes": 300_000_000}, "300.0 MB"),
        ([24_000_000_000], {}, ""),
    ],
)
def test_what_a_job_held_at_most(memories: list[int | None], outcome: dict[str, int], text: str) -> None:
    devices = tuple(Device(uuid=f"u{n}", kind="cuda", index=n, vram_bytes=each) for n, each in enumerate(memories))
    ended = job(
        State.SUCCEEDED,
        started_at=1.0,
        ended_at=2.0,
        devices=devices,
        outcome=Outcome(state=State.SUCCEEDED, **outcome),  # type: ignore[arg-type]
    )
    assert peak(ended) == text
    assert status_line(ended, 0.0) == f"✓ done on box in 1.0 s{f' · peak {text}' if text else ''} · job k3f9"


@pytest.mark.parametrize(
    ("requirements", "text"),
    [
        (Requirements(), ""),
        (Requirements(accelerator="cuda", devices=2, worker="box"), "2 cuda · on box"),
        (
            Requirements(accelerator="cuda", min_vram_bytes=40 * 10**9, device_names=("A100*", "H100*")),
            "cuda, with 40 GB · A100* or H100*",
        ),
        (Requirements(accelerator="cuda", devices=2, min_vram_bytes=40 * 10**9), "2 cuda, each with 40 GB"),
        (Requirements(accelerator="cuda", vram_share_bytes=8 * 10**9), "cuda, 8 GB of it"),
        (Requirements(frameworks=("torch>=2.4",), python=">=3.11", cpu_cores=1), "torch>=2.4 · python>=3.11 · 1 core"),
        (
            Requirements(nodes=4, locality="spread", ram_bytes=64 * 10**9, cpu_cores=0.5, labels=("team=vision",)),
            "4 machines (spread) · 64 GB RAM · 0.5 cores · team=vision",
        ),
        (
            Requirements(accelerator="cuda", min_capability="8.0", min_driver="535.104", bind_cpus=True),
            "cuda · capability 8.0 · driver 535.104 · bound to near cores",
        ),
        (Requirements(os="linux", arch="arm64", nodes=2), "2 machines · linux · arm64"),
    ],
)
def test_what_a_job_needs(requirements: Requirements, text: str) -> None:
    assert needs(requirements) == text


def test_near_words() -> None:
    assert near_words("k3f8", ["a81c", "k3f9"]) == " (did you mean k3f9?)"
    assert near_words("zzzz", ["a81c", "k3f9"]) == ""


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (
            CallsCount(calls=96, done=31, failed=1, running=4, runners=2),
            "31 of 96 calls done · 4 running · 1 failed · 2 runners",
        ),
        (CallsCount(calls=96, done=96, runners=1, idle_since=760.0), "96 calls done · 1 runner, idle 4 min"),
        (CallsCount(calls=1, done=1), "1 call done"),
        (
            CallsCount(calls=361, done=80, dropped=281, runners=2, idle_since=760.0),
            "80 of 361 calls done · 281 dropped · 2 runners, idle 4 min",
        ),
        (
            CallsCount(calls=100_000, done=2500, running=512, runners=2),
            "2,500 of 100,000 calls done · 512 running · 2 runners",
        ),
    ],
)
def test_the_calls_of_a_function_are_counted(count: CallsCount, text: str) -> None:
    assert calls_of(count, 1000.0) == text
    assert overall_line(job(State.RUNNING, kind="calls", calls=count, tasks={"running": 1}), 1000.0, "all") == (
        f"{'○' if count.idle_since else '●'} {text} · job k3f9"
    )


@pytest.mark.parametrize(
    ("state", "count", "text"),
    [
        (State.CANCELLED, CallsCount(calls=361, done=80, dropped=281), "■ cancelled · 80 of 361 calls were done"),
        (State.CANCELLED, CallsCount(calls=1, done=0, dropped=1), "■ cancelled · 0 of 1 call was done"),
        (State.FAILED, CallsCount(calls=9, done=8, failed=1), "✗ failed · 8 of 9 calls were done · 1 failed"),
        (State.SUCCEEDED, CallsCount(calls=9, done=8, dropped=1), "✓ 8 of 9 calls done · 1 dropped"),
    ],
)
def test_the_calls_of_a_function_that_ended_do_not_stay_open(state: State, count: CallsCount, text: str) -> None:
    ended = job(state, kind="calls", calls=count, tasks={state.value: 1})
    assert progress_of(ended, 1000.0) == text


def test_a_function_is_warm_while_its_runners_wait_for_calls() -> None:
    busy = job(State.RUNNING, kind="calls", calls=CallsCount(calls=3, done=1, running=2, runners=2))
    warm = job(State.RUNNING, kind="calls", calls=CallsCount(calls=3, done=3, runners=2, idle_since=1.0))
    assert (symbol_of(busy), state_of(busy)) == ("●", "running")
    assert (symbol_of(warm), state_of(warm)) == ("○", "warm")
    assert state_of(job(State.SUCCEEDED, kind="calls", calls=CallsCount(calls=3, done=3))) == "done"
