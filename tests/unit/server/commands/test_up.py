"""What `gpulayer up` reads of its command line, and what it says in its lines."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from gpulayer.protocol.types import Device, Inventory, WorkerView
from gpulayer_server.commands import holding as holding_module
from gpulayer_server.commands import up
from gpulayer_server.commands.fleet import described, say, spoken
from gpulayer_server.commands.holding import Holding
from gpulayer_server.datafolder import Listen


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--port", "http"], "'http' is not a port"),
        (["--port", "65536"], "'65536' is not a port"),
        (["--slots", "0"], "a worker offers at least one slot"),
        (["--join-expires", "soon"], "'soon' is not a duration such as 90s, 30m, 24h or 7d"),
        (["--join-expires", "0s"], "'0s' is not a duration"),
        (["--host", " "], "it is empty; name an address or name of this machine"),
        (["--host", "[]"], "it is empty"),
        (["elsewhere"], "unrecognized arguments: elsewhere"),
    ],
)
def test_a_line_that_can_not_be_understood(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        up.main(words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90.0), ("30m", 1800.0), ("24h", 86_400.0), ("7d", 604_800.0), ("1.5h", 5400.0)]
)
def test_durations(text: str, seconds: float) -> None:
    assert up._seconds(text) == seconds


@pytest.mark.parametrize(
    ("seconds", "words"), [(90.0, "90 s"), (1800.0, "30 minutes"), (86_400.0, "24 hours"), (604_800.0, "7 days")]
)
def test_durations_as_they_are_said(seconds: float, words: str) -> None:
    assert spoken(seconds) == words


def test_help_shows_how(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        up.main(["--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "gpulayer up --host 10.0.0.5" in said
    assert "exit codes:" in said
    assert up._parser().parse_args(["--host", "[::1]"]).host == "::1"


class Gone(io.StringIO):
    """The output of a terminal that was closed."""

    def write(self, text: str, /) -> int:
        raise OSError(5, "Input/output error")


@pytest.mark.parametrize("output", [None, Gone()])
def test_a_terminal_that_is_gone_ends_nothing_and_no_token_goes_into_the_log(
    output: Gone | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "stdout", output)
    caplog.set_level("INFO")
    say("● box1 joined")
    say("gpulayer join https://box:8443 --token gl-join-secret")
    assert ("● box1 joined" in caplog.text) is (output is not None)
    assert "gl-join-secret" not in caplog.text


def test_what_a_machine_has_in_few_words() -> None:
    def worker(slots: int, *names: str) -> WorkerView:
        devices = tuple(Device(uuid=str(n), kind="cuda", index=n, name=name) for n, name in enumerate(names))
        inventory = Inventory(host="h", os="linux", arch="x", cpu_cores=1, ram_bytes=1, python="3", devices=devices)
        return WorkerView(id="w", name="w", connected=True, slots=slots, slots_free=slots, inventory=inventory)

    assert described(worker(1)) == "1 slot"
    assert described(worker(16, "RTX 4090", "RTX 4090", "")) == "2 × RTX 4090, cuda, 16 slots"


# ---------------------------------------------------------------- where it listens


@pytest.mark.parametrize(
    ("host", "port", "before", "expected"),
    [
        (None, None, None, ("10.0.0.1", 8443)),
        ("box.lab", None, None, ("box.lab", 8443)),
        (None, 9000, None, ("10.0.0.1", 9000)),
        (None, None, ("127.0.0.1", 8000), ("127.0.0.1", 8000)),  # as before
        (None, None, ("0.0.0.0", 8000), ("0.0.0.0", 8000)),
        (None, None, ("203.0.113.9", 8000), ("10.0.0.1", 8000)),  # the address is another machine's by now
        ("box.lab", None, ("127.0.0.1", 8000), ("box.lab", 8000)),
        (None, 9000, ("127.0.0.1", 8000), ("10.0.0.1", 9000)),
    ],
)
def test_where_it_listens(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    host: str | None,
    port: int | None,
    before: tuple[str, int] | None,
    expected: tuple[str, int],
) -> None:
    monkeypatch.setattr(holding_module, "default_address", lambda: "10.0.0.1")
    holding = Holding(tmp_path, host, port, 8443, None)
    found = holding._wanted(Listen(host=before[0], port=before[1]) if before else None)
    assert (found.host, found.port) == expected
