"""Ctrl-C and SIGTERM under `gpulayer submit`."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess

import pytest

from gpulayer.protocol.types import State
from tests.support.deployment import Deployment
from tests.support.processes import PATIENCE_S, until
from tests.support.terminal import Cli, Screen
from tests.support.way import Way

PROGRAM = "trap 'echo caught; exit 9' TERM; echo up; while :; do sleep 0.05; done"


def job_on(screen: Screen) -> str:
    """The id that stands behind its machine."""
    match = re.search(r"● .*job (\w+)", screen.plain)
    assert match is not None, screen.shown
    return match.group(1)


@pytest.mark.parametrize(("keys", "then"), [("\r", "■ cancelled"), ("y\r", "■ cancelled"), ("\x03", "■ cancelled")])
def test_ctrl_c_asks_and_stops_it_there(cli: Cli, deployment: Deployment, keys: str, then: str) -> None:
    with cli.screen("submit", "--shell", PROGRAM) as screen:
        screen.until("up\r\n")
        screen.press("\x03")
        screen.until("stop it there too? [Y/n/detach] ")
        screen.press(keys)
        assert screen.end() == 130
        assert "caught" in screen.shown
        assert then in screen.shown
        assert deployment.api.job(job_on(screen)).state is State.CANCELLED


def test_no_lets_it_go_on_and_so_does_detach(cli: Cli, deployment: Deployment) -> None:
    with cli.screen("submit", "--shell", "while :; do echo tick; sleep 0.1; done") as screen:
        screen.until("tick\r\n")
        screen.press("\x03")
        asked = screen.until("[Y/n/detach] ")
        screen.press("what\r")
        asked = screen.until("[Y/n/detach] ", after=asked)
        screen.press("n\r")
        went_on = screen.until("tick\r\n", after=asked)
        screen.press("\x03")
        screen.until("[Y/n/detach] ", after=went_on)
        screen.press("detach\r")
        assert screen.end() == 130
        job = job_on(screen)
        assert f"job {job} goes on: gpulayer job logs -f {job}" in screen.shown
    assert deployment.api.job(job).state is State.RUNNING


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_without_a_terminal_it_is_cancelled(
    cli: Cli, deployment: Deployment, number: signal.Signals, code: int
) -> None:
    process = cli.start("submit", "--shell", PROGRAM)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    process.send_signal(number)
    out, err = process.communicate()
    assert (out, process.returncode) == (b"caught\n", code)
    assert "■ cancelled on alpha" in err.decode()


def test_a_reader_that_ends_lets_it_go_on(cli: Cli, deployment: Deployment) -> None:
    process = cli.start("submit", "--shell", "echo $$; while :; do echo more; sleep 0.05; done")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    err = process.stderr.read().decode()
    process.stderr.close()
    assert process.wait() == 141
    match = re.search(r"job (\w+) goes on: gpulayer job logs -f", err)
    assert match is not None, err
    assert deployment.api.job(match.group(1)).state is State.RUNNING


def test_the_screen_reads_well(cli: Cli) -> None:
    with cli.screen("submit", "--shell", "printf 'no newline'; sleep 0.2") as screen:
        assert screen.end() == 0
    assert re.search(r"● alpha +job \w+\r\nno newline\r\n", screen.plain)
    assert "\x1b[" in screen.shown  # colours, on a terminal
    assert "\x1b[3" not in cli.run("submit", "--", "true").stderr


def test_the_control_plane_may_restart_meanwhile(cli: Cli, plane: Deployment) -> None:
    plane.worker("solo", slots=1, warm=0)
    own = Cli(cli.folder, plane.env | {"GPULAYER_EMBEDDED": "0"})  # the test starts it again itself
    go = cli.folder / "go"
    process = own.start("submit", "--shell", f"echo up; while ! [ -e '{go}' ]; do sleep 0.02; done; echo down; exit 6")
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    plane.plane.kill()
    plane.plane.start()
    until(lambda: plane.connected("solo"), "the worker to come back")
    go.touch()
    out, err = process.communicate()
    assert (out, process.returncode) == (b"down\n", 6), err.decode()


# ---------------------------------------------------------------- at each stage, over a slow network


def test_while_files_are_sent_nothing_is_left_and_the_rest_goes_on_from_there(
    cli: Cli, deployment: Deployment, way: Way
) -> None:
    (cli.folder / "big").write_bytes(os.urandom(12_000_000))
    words = ("submit", "--label", f"t={cli.folder.name}", "--input", "big", "--", "wc", "-c", "big")
    way.stops_behind = b"PATCH /v1/uploads/"
    with cli.screen(*words, env=way.env) as screen:
        assert way.stopped.wait(PATIENCE_S)
        screen.press("\x03")
        assert screen.end() == 130
    way.goes_on()
    assert cli.run("job", "list", "--label", f"t={cli.folder.name}", "--json").stdout == "[]\n"
    assert cli.run(*words, env=way.env).stdout == "12000000 big\n"


def test_while_the_answer_is_on_its_way_the_job_is_not_lost(cli: Cli, deployment: Deployment, way: Way) -> None:
    way.stops_behind = b"POST /v1/jobs "
    with cli.screen("submit", "--shell", PROGRAM, env=way.env) as screen:
        assert way.stopped.wait(PATIENCE_S)
        screen.press("\x03")
        screen.until("^C")
        way.goes_on()
        screen.until("[Y/n/detach] ")
        screen.press("\r")
        assert screen.end() == 130
        assert "■ cancelled" in screen.plain
    way.stops_behind = b"POST /v1/jobs "
    with cli.screen("submit", "--", "true", env=way.env) as screen:
        assert way.stopped.wait(PATIENCE_S)
        while screen.process.poll() is None:  # two that come at once may be one
            screen.press("\x03")
            with contextlib.suppress(subprocess.TimeoutExpired):
                screen.process.wait(1)
        assert screen.end() == 130
        assert "whether the job was submitted is not known: gpulayer job list shows it" in screen.shown


@pytest.mark.parametrize("hangs_up", [False, True])
def test_while_files_are_fetched_nothing_half_written_is_left(
    cli: Cli, deployment: Deployment, way: Way, hangs_up: bool
) -> None:
    program = "head -c 12000000 /dev/urandom > big"
    way.stops_behind = b"GET /v1/blobs/"
    with cli.screen("submit", "--output", "big", "--to", "there", "--shell", program, env=way.env) as screen:
        assert way.stopped.wait(PATIENCE_S)
        if hangs_up:
            screen.hang_up()
            assert screen.process.wait(PATIENCE_S) == 129
        else:
            screen.press("\x03")
            assert screen.end() == 130
            assert "its files were not fetched: gpulayer job download " in screen.shown
    assert list((cli.folder / "there").iterdir()) == []
    job = deployment.api.jobs(limit=1)[0]
    assert job.state is State.SUCCEEDED
    way.goes_on()
    assert cli.run("job", "download", job.id, "--to", "there").stderr.endswith("1 file, 12.0 MB: big\n")


def test_a_control_plane_that_does_not_answer_can_be_left(cli: Cli, deployment: Deployment, way: Way) -> None:
    with cli.screen("submit", "--shell", PROGRAM, env=way.env) as screen:
        screen.until("up\r\n")
        way.stops_behind = b"POST /v1/jobs/"
        screen.press("\x03")
        screen.until("[Y/n/detach] ")
        screen.press("y\r")
        assert way.stopped.wait(PATIENCE_S)
        screen.press("\x03")
        assert screen.end() == 130
        assert f"gpulayer job cancel {job_on(screen)} asks again" in screen.shown


def test_an_arrays_control_plane_may_go_away(cli: Cli, deployment: Deployment, way: Way) -> None:
    with cli.screen("submit", "--array", "0-1", "--", "sleep", "600", env=way.env) as screen:
        screen.until("2 running")
        way.close()
        screen.until("control plane out of reach, the job goes on")
        screen.press("\x03")
        screen.until("[Y/n/detach] ")
        screen.press("d\r")
        assert screen.end() == 130
    job = deployment.api.jobs(limit=1)[0]
    assert not job.terminal
    deployment.api.cancel(job.id)
