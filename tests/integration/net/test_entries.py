"""The commands as they are installed, `gpulayer up` and `gpulayer join`, in terminals that people close."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.net.hosts import ip, why_not
from tests.support.deployment import Deployment
from tests.support.processes import PATIENCE_S, until
from tests.support.terminal import Screen

GPULAYER = str(Path(sys.executable).with_name("gpulayer"))
QUIET = ["--slots", "1", "--warm", "0", "--reserve-bytes", "0"]
_LINE = re.compile(r"^gpulayer (join .*)$", re.MULTILINE)
_THIS = ["--host", "127.0.0.1", "--port", "0"]


@pytest.fixture
def home() -> Iterator[Deployment]:
    with Deployment(env={"GPULAYER_LOCAL_WORKER": "--warm 0 --reserve-bytes 0", "GPULAYER_EMBEDDED": "0"}) as home:
        yield home


def up(home: Deployment, *words: str, prefix: tuple[str, ...] = (), env: dict[str, str] | None = None) -> Screen:
    return Screen([*prefix, GPULAYER, "up", *words], home.folder, home.env | (env or {}))


def line_of(screen: Screen) -> list[str]:
    """The words behind `gpulayer` of the line that is to be pasted."""
    screen.until("--tls-fingerprint SHA256:")
    screen.until("──\r\n", after=screen.shown.index("--tls-fingerprint"))
    return shlex.split(_LINE.findall(screen.plain.replace("\r\n", "\n"))[-1])


class Lines:
    """Looks at the command lines and environments of all processes while a test runs, as anybody on the machine may."""

    def __init__(self, *secrets: str):
        self._secrets = [secret.encode() for secret in secrets]
        self._over = threading.Event()
        self.found: dict[int, set[bytes]] = {}  # pid: the command lines with a secret in them
        self.looks = 0
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._over.is_set():
            self.looks += 1
            for pid in filter(str.isdigit, os.listdir("/proc")):
                for name in ("cmdline", "environ"):
                    with contextlib.suppress(OSError):
                        data = Path(f"/proc/{pid}/{name}").read_bytes()
                        if any(secret in data for secret in self._secrets):
                            self.found.setdefault(int(pid), set()).add(data)

    def __enter__(self) -> Lines:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def test_up_and_join_as_they_are_installed(home: Deployment) -> None:
    """The token is in the one command line that a person typed, and goes from there before anything else is done."""
    with up(home, *_THIS, "--slots", "1", "--name", "here") as screen:
        screen.until("● here is there · 1 slot · 1 machine")
        words = line_of(screen)
        data = home.folder / "w"
        with Lines(words[3]) as lines, (home.folder / "join.log").open("wb") as log:
            joined = subprocess.Popen(
                [GPULAYER, *words, "--data", str(data), "--name", "box", *QUIET],
                env=home.env, cwd=home.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
            try:
                screen.until("● box joined · 1 slot · 2 machines")
            finally:
                joined.send_signal(signal.SIGTERM)
                code = joined.wait(PATIENCE_S)
        assert code == 0, (home.folder / "join.log").read_text()
        said = (home.folder / "join.log").read_text()
        assert said == (
            f"gpulayer: box works for {words[1]}; its log is {data}/logs/agent.log; Ctrl-C ends it and what runs here\n"
        )
        assert lines.looks > 1
        assert set(lines.found) <= {joined.pid}, lines.found
        typed = "\0".join([GPULAYER, *words]).encode()
        assert all(typed in found for found in lines.found.get(joined.pid, set())), lines.found
        screen.until("○ box is out of reach")
        screen.press("\x03")
        assert screen.end() == 0
        assert "joined machines come back by themselves" in screen.plain
        assert "Traceback" not in screen.plain


def test_modules_of_the_current_folder_are_not_ours(home: Deployment) -> None:
    """Whoever may write where the line is pasted would get the token, and all that the worker may do."""
    mark = home.folder / "mark"
    for name in ("msgspec", "httpx", "gpulayer_worker", "gpulayer", "websockets", "keeper"):
        (home.folder / f"{name}.py").write_text(f"open({str(mark)!r}, 'w').write({name!r})\nraise SystemExit(9)\n")
    with up(home, *_THIS, "--slots", "1", "--name", "here") as screen:
        screen.until("● here is there")
        words = line_of(screen)
        with (home.folder / "join.log").open("wb") as log:
            joined = subprocess.Popen(
                [GPULAYER, *words, "--data", "w", "--name", "box", *QUIET],
                env=home.env, cwd=home.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
            try:
                screen.until("● box joined")
                assert Path(f"/proc/{joined.pid}/cwd").readlink() == Path("/")
                assert (home.folder / "w" / "credential.json").exists()  # beside the folder of who typed it
            finally:
                joined.send_signal(signal.SIGTERM)
                assert joined.wait(PATIENCE_S) == 0
        screen.press("\x03")
        assert screen.end() == 0
    assert not mark.exists(), mark.read_text()


@pytest.mark.parametrize("how", ["closed", "SIGTERM"])
def test_a_terminal_that_is_closed_ends_it_in_order(home: Deployment, how: str) -> None:
    with up(home, *_THIS, "--no-worker") as screen:
        url = line_of(screen)[1]
        if how == "closed":
            screen.hang_up()
        else:
            screen.process.send_signal(signal.SIGTERM)
        assert screen.process.wait(PATIENCE_S) == 0
    assert "Traceback" not in (home.data / "logs" / "control-plane.log").read_text()
    with up(home, "--no-worker") as again:  # the folder is free, the address remembered
        assert line_of(again)[1] == url
        again.press("\x03")
        assert again.end() == 0


def test_a_second_ctrl_c_waits_for_nothing(home: Deployment) -> None:
    with up(home, *_THIS, "--slots", "1", "--name", "here") as screen:
        screen.until("● here is there")
        home.local_worker()
        stopped = [pid for pid, line in home.processes().items() if re.search("^[^ ]+ -m gpulayer_worker agent ", line)]
        assert len(stopped) == 1
        os.kill(stopped[0], signal.SIGSTOP)  # it does not end when told to
        try:
            screen.press("\x03")
            until(lambda: "its end has begun" in log_of(home), lambda: log_of(home))
            screen.press("\x03")
            assert screen.end() == 130
        finally:
            os.kill(stopped[0], signal.SIGCONT)


def log_of(home: Deployment) -> str:
    return (home.data / "logs" / "control-plane.log").read_text()


def test_nobody_who_reads_ends_nothing(home: Deployment) -> None:
    """`gpulayer up | head -1`, and started with its output closed."""
    read, write = os.pipe()
    process = subprocess.Popen(
        [GPULAYER, "up", *_THIS, "--no-worker"], env=home.env, cwd="/", stdin=subprocess.DEVNULL, stdout=write
    )
    os.close(write)
    with open(read, "rb") as pipe:
        assert pipe.readline().decode().startswith("── GPUlayer on ")
    words = ["token", "create", "--role", "join", "--name", "again"]
    done = subprocess.run([GPULAYER, *words], env=home.env, cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 0


def test_of_two_at_once_one_holds_it_and_the_other_stands_by(home: Deployment) -> None:
    with up(home, *_THIS, "--no-worker") as one, up(home, *_THIS, "--no-worker") as two:
        first, second = line_of(one), line_of(two)
        assert first[1:2] + first[4:] == second[1:2] + second[4:]  # one address and one certificate
        assert first[3] != second[3]
        standing = [each for each in (one, two) if "this one stands by" in each.plain]
        assert len(standing) == 1
        for each in (one, two):
            assert "it was at" not in each.plain
            each.press("\x03")
            assert each.end() == 0


def test_an_address_that_moves_is_told_to_who_moves_it(home: Deployment) -> None:
    with up(home, *_THIS, "--no-worker") as screen:
        before = line_of(screen)[1]
        screen.press("\x03")
        assert screen.end() == 0
    with up(home, "--host", "localhost", "--port", "0", "--no-worker") as screen:
        assert line_of(screen)[1].startswith("https://localhost:")
        assert f"{before}, where machines that joined before still look" in screen.plain
        screen.press("\x03")
        assert screen.end() == 0


def test_in_a_narrow_terminal_the_line_stays_one(home: Deployment) -> None:
    with up(home, *_THIS, "--no-worker", env={"COLUMNS": "40"}) as screen:
        assert line_of(screen)[0] == "join"
        rules = [line for line in screen.plain.splitlines() if line.startswith("──")]
        assert max(map(len, rules)) <= 40
        assert "Only this machine can reach that address" in screen.plain
        screen.press("\x03")
        assert screen.end() == 0


def test_without_a_network_it_says_that_only_this_machine_can_join(home: Deployment) -> None:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    space = f"gpl{os.getpid()}-alone"
    ip("netns", "add", space)
    try:
        ip("-n", space, "link", "set", "lo", "up")
        inside = ("nsenter", f"--net=/run/netns/{space}", "--")
        with up(home, "--port", "0", "--slots", "1", "--name", "here", prefix=inside) as screen:
            screen.until("● here is there")
            assert line_of(screen)[1].startswith("https://127.0.0.1:")
            assert "Only this machine can reach that address; --host names one by which others do." in screen.plain
            screen.press("\x03")
            assert screen.end() == 0
    finally:
        ip("netns", "del", space)
