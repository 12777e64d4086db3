"""What Tab offers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

import gpulayer
from gpulayer.client.errors import ControlPlaneError
from gpulayer.notebook import completion
from gpulayer.notebook.completion import Names, complete
from gpulayer.notebook.options import COMMANDS
from gpulayer.protocol.endpoint import Endpoint
from gpulayer.protocol.types import Device, Inventory, JobView, SessionView, State, WorkerView

ENDPOINT = Endpoint(url="http://127.0.0.1:9", token="t", pid=1, version="0")
DEVICES = tuple(Device(uuid=f"u{n}", kind="cuda", index=n, name="NVIDIA A100-SXM4-40GB") for n in range(2))
INVENTORY = Inventory(
    host="h", os="linux", arch="a", cpu_cores=1, ram_bytes=1, python="3", devices=DEVICES, labels={"team": "vision"}
)


class Plane:
    """A control plane's answers."""

    def __init__(self) -> None:
        self.asked = 0
        self.timeouts: set[float] = set()
        self.error: Exception | None = None

    def __call__(self, endpoint: Endpoint, *, timeout_s: float) -> Plane:
        self.timeouts.add(timeout_s)
        self.asked += 1
        if self.error is not None:
            raise self.error
        return self

    def workers(self) -> list[WorkerView]:
        facts: dict[str, Any] = {"connected": True, "slots": 1, "slots_free": 1, "inventory": INVENTORY}
        return [WorkerView(id=name, name=name, **facts) for name in ("gpu-box-1", "gpu-box-2", "mac studio")]

    def sessions(self) -> list[SessionView]:
        return [SessionView(id=n, name=n, worker="gpu-box-1", connected=True) for n in ("train", "eval")]

    def jobs(self, limit: int) -> list[JobView]:
        return [JobView(id="k3f9", state=State.RUNNING), JobView(id="a81c", state=State.SUCCEEDED)]


@pytest.fixture
def plane(monkeypatch: pytest.MonkeyPatch) -> Plane:
    plane = Plane()
    monkeypatch.setattr(completion, "Api", plane)
    return plane


def offered(text: str) -> list[str] | None:
    found = complete(text, Names(lambda: ENDPOINT, lambda: ["mean", "model"]))
    return None if found is None else found[1]


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        ("%%gpulayer --acc", ["--accelerator"]),
        ("%%gpulayer --session x --qui", ["--quiet"]),
        ("%%gpulayer --quiet --qui", []),  # it is there already
        ("%%gpulayer --exclude a --excl", ["--exclude"]),  # this one may come again
        ("%%gpulayer --accelerator ", ["cuda", "rocm", "mps", "cpu"]),
        ("%%gpulayer --min", ["--min-vram", "--min-capability", "--min-driver"]),
        ("%%gpulayer --min-vram ", []),
        ("%%gpulayer --framework t", ["torch", "tensorflow"]),
        ("%%gpulayer --framework jax --frame", ["--framework"]),
        ("%%gpulayer --os ", ["linux", "darwin"]),
        ("%%gpulayer --arch a", ["arm64"]),
        ("%gpulayer explain --group-locality ", ["prefer", "require", "spread", "none"]),
        ("%gpulayer explain --device-name ", ["'NVIDIA A100-SXM4-40GB'"]),
        ("%gpulayer explain --worker-label team", ["team=vision"]),
        ("%gpulayer session train --wait", ["--wait-for-worker"]),
        ("%%gpulayer --accelerator=c", ["cuda", "cpu"]),
        ("%%gpulayer --worker ", ["gpu-box-1", "gpu-box-2", "'mac studio'"]),
        ("%%gpulayer --worker gpu", ["gpu-box-1", "gpu-box-2"]),
        ("%%gpulayer --worker=gpu", ["gpu-box-1", "gpu-box-2"]),
        ("%%gpulayer --worker 'mac s", ["'mac studio'"]),
        ("%%gpulayer --session t", ["train"]),
        ("%%gpulayer --in m", ["mean", "model"]),
        ("%%gpulayer --in model,me", ["mean"]),
        ("%%gpulayer --out=mo", ["model"]),
        ("%%gpulayer --timeout ", []),
        ("%%gpulayer tr", []),
        ("%gpulayer ", list(COMMANDS)),
        ("%gpulayer at", ["attach"]),
        ("%gpulayer attach ", ["k3f9", "a81c", "--help", "--max-output"]),
        ("%gpulayer attach k", ["k3f9"]),
        ("%gpulayer attach --max-output 1GB a", ["a81c"]),
        ("%gpulayer attach k3f9 ", ["--help", "--max-output"]),
        ("%gpulayer logs a8", ["a81c"]),
        ("%gpulayer cancel ", ["k3f9", "--help"]),  # the other one has ended
        ("%gpulayer release ", ["train", "eval", "--help"]),
        ("%gpulayer session e", ["eval"]),
        ("%gpulayer session train --worker mac", ["'mac studio'"]),
        ("  %gpulayer jobs --a", ["--all"]),
    ],
)
def test_what_may_follow(plane: Plane, text: str, texts: list[str]) -> None:
    assert offered(text) == texts


@pytest.mark.parametrize(
    "text",
    [
        "x = 1",
        "%gpulaye",
        "%gpulayer",
        "%%gpulayerx ",
        "%%gpulayer --source d",
        "%%gpulayer --include=",
        "%gpulayer nothing x",
    ],
)
def test_what_is_not_ours_to_say(plane: Plane, text: str) -> None:
    assert offered(text) is None
    assert plane.asked == 0


def test_options_alone_ask_nobody(plane: Plane) -> None:
    offered("%%gpulayer --s")
    offered("%gpulayer st")
    assert plane.asked == 0


def test_the_next_keystroke_does_not_ask_again(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpulayer.notebook.completion._KEPT_S", 1e9)
    names = Names(lambda: ENDPOINT, lambda: ["mean", "model"])
    for text in ("%%gpulayer --worker g", "%%gpulayer --worker gp"):
        complete(text, names)
    assert plane.asked == 1
    assert plane.timeouts == {0.3}


def test_without_an_answer_nothing_is_offered(plane: Plane) -> None:
    plane.error = ControlPlaneError("it does not answer")
    assert offered("%%gpulayer --worker g") == []


def test_without_a_control_plane_nobody_is_asked_and_none_is_started(plane: Plane) -> None:
    assert complete("%gpulayer attach k", Names(lambda: None, list)) == ("k", [])
    assert plane.asked == 0


# ---------------------------------------------------------------- in IPython


@pytest.fixture
def shell(plane: Plane, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[InteractiveShell]:
    monkeypatch.setenv("GPULAYER_DATA", str(tmp_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    shell = InteractiveShell(config=Config({"HistoryManager": {"enabled": False, "hist_file": ":memory:"}}))
    gpulayer.load_ipython_extension(shell)
    yield shell
    if id(shell) in gpulayer._loaded:
        gpulayer.unload_ipython_extension(shell)


def completions(shell: InteractiveShell, text: str) -> list[tuple[str, int]]:
    """Texts and where they begin, as a kernel answers; the cursor is at '|'."""
    at = text.index("|")
    with provisionalcompleter():
        found = shell.Completer.completions(text.replace("|", ""), at)
        return [(each.text, each.start) for each in found]


def test_in_a_cells_first_line(shell: InteractiveShell) -> None:
    assert completions(shell, "%%gpulayer --acc|\nprint(1)") == [("--accelerator", 11)]
    assert completions(shell, "%%gpulayer --accelerator=cu|\nprint(1)") == [("cuda", 25)]


def test_below_the_first_line_it_is_pythons(shell: InteractiveShell) -> None:
    found = [text for text, _ in completions(shell, "%%gpulayer --quiet\nprin|")]
    assert "print" in found
    assert not any(text.startswith("--") for text in found)


def test_in_a_line(shell: InteractiveShell) -> None:
    assert completions(shell, "x = 1\n%gpulayer att|") == [("attach", 16)]


def test_variables_of_the_notebook(shell: InteractiveShell) -> None:
    shell.user_ns |= {"weights": 1, "_hidden": 2}
    assert completions(shell, "%%gpulayer --in |\n1") == [("weights", 16)]
    assert completions(shell, "%%gpulayer --in x,we|\n1") == [("weights", 18)]


def test_files_are_ipythons(shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (tmp_path / "a folder of mine").mkdir()
    monkeypatch.chdir(tmp_path)
    assert any("folder" in text for text, _ in completions(shell, "%%gpulayer --source a|"))


def test_unloaded_it_says_nothing_more(shell: InteractiveShell) -> None:
    before = len(shell.Completer.custom_matchers)
    gpulayer.unload_ipython_extension(shell)
    assert len(shell.Completer.custom_matchers) == before - 1
    assert all(text != "--accelerator" for text, _ in completions(shell, "%%gpulayer --acc|"))
