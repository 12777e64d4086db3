"""What a worker knows of its frameworks over time: found once, kept, found again when something changed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from gpulayer.protocol.machines import Framework, Inventory
from gpulayer_worker.probes import Probes, probe_all
from tests.support.frameworks import TORCH, card, install, interpreter, machine, remove
from tests.support.processes import until

A, B = card("a"), card("b")
COUNTS = """
def hook(name):
    with open(os.environ["CUDA_NOTE"], "a") as file:
        file.write(name + "\\n")
    if os.path.exists(os.environ["CUDA_NOTE"] + "." + name):
        raise RuntimeError(open(os.environ["CUDA_NOTE"] + "." + name).read())
"""


class Place:
    """An interpreter whose torch notes what it computes on, and fails where told to; and a worker's data folder."""

    def __init__(self, folder: Path) -> None:
        self.env = folder / "env"
        self.data = folder / "data"
        self.note = folder / "note"
        self.python = interpreter(self.env, {"torch": ("2.13.0", TORCH + COUNTS)})

    def computed(self) -> list[str]:
        """What it computed on since the last call."""
        lines = self.note.read_text().split() if self.note.exists() else []
        self.note.unlink(missing_ok=True)
        return lines

    def fails(self, name: str, why: str) -> None:
        """From now on it fails there; '' mends it."""
        path = self.note.with_name(f"note.{name}")
        path.write_text(why) if why else path.unlink()

    def probes(self, busy: Callable[[], set[str]] = set) -> Probes:
        """As an agent that starts has them."""
        return Probes(self.python, self.data, busy=busy)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Such a place, of the test's own."""
    monkeypatch.setenv("CUDA_NOTE", str(tmp_path / "note"))
    return Place(tmp_path)


def run(probes: Probes, inventory: Inventory) -> list[Framework]:
    """What a run tells."""
    found: list[Framework] = []
    asyncio.run(probes.run(inventory, found.append))
    return found


def test_a_framework_is_probed_once_and_known_at_the_next_start(place: Place) -> None:
    probes = place.probes()
    assert probes.names() == ("torch",)
    assert probes.known(machine(A)) == ()
    [framework] = run(probes, machine(A))
    assert framework.works == ("cpu", "cuda")
    assert probes.names() == ()
    assert run(probes, machine(A)) == []
    assert place.computed() == ["cpu", "cpu", "GPU-a", "GPU-a"]
    started = place.probes()
    assert started.known(machine(A)) == (framework,)
    assert started.names() == ()
    assert run(started, machine(A)) == []
    assert place.computed() == []


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b'{"results": {"torch": 3}}', b"[]"])
def test_a_damaged_file_is_no_error(place: Place, content: bytes) -> None:
    run(place.probes(), machine())
    (place.data / "probes.json").write_bytes(content)
    assert [each.works for each in run(place.probes(), machine())] == [("cpu",)]


def test_a_folder_that_can_not_be_written_is_no_error(place: Place) -> None:
    place.data.write_text("a file where the folder should be")
    assert [each.works for each in run(place.probes(), machine())] == [("cpu",)]


def test_another_version_driver_or_script_is_probed_anew(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    run(place.probes(), machine(A))
    place.computed()
    install(place.env, "torch", "2.14.0", TORCH + COUNTS)
    [framework] = run(place.probes(), machine(A))
    assert (framework.version, place.computed()[::2]) == ("2.14.0", ["cpu", "GPU-a"])
    run(place.probes(), machine(card("a", driver="590.1")))
    assert place.computed()[::2] == ["GPU-a"]
    run(place.probes(), machine(card("a", driver="590.1"), cuda="13.2"))
    assert place.computed()[::2] == ["GPU-a"]
    monkeypatch.setattr("gpulayer_worker.probes.asking.scripts_digest", lambda: "another")
    run(place.probes(), machine(card("a", driver="590.1"), cuda="13.2"))
    assert place.computed()[::2] == ["cpu", "GPU-a"]


def test_only_a_new_device_is_computed_on(place: Place) -> None:
    probes = place.probes()
    run(probes, machine(A))
    place.computed()
    [framework] = run(probes, machine(A, B))
    assert place.computed() == ["GPU-b", "GPU-b"]
    assert framework.devices == ("GPU-a", "GPU-b")
    [framework] = run(probes, machine(B))
    assert (place.computed(), framework.devices) == ([], ("GPU-b",))


def test_devices_that_come_late_are_known_at_once_and_told_soon(place: Place) -> None:
    """As where a driver answers after the worker has said hello."""
    run(place.probes(), machine(A))
    place.computed()
    started = place.probes()
    assert [each.works for each in started.known(machine())] == [("cpu",)]
    assert (started.names(), started.probing(machine())) == ((), ())
    assert started.probing(machine(A)) == ("torch",)
    assert [each.works for each in run(started, machine(A))] == [("cpu", "cuda")]
    assert (started.probing(machine(A)), place.computed()) == ((), [])
    assert started.probing(machine(A, B)) == ("torch",)


def test_a_sick_device_is_left_alone(place: Place) -> None:
    [framework] = run(place.probes(), machine(A, card("b", sick="Xid 79")))
    assert (framework.devices, framework.problems) == (("GPU-a",), {})
    assert "GPU-b" not in place.computed()


def test_a_device_that_fell_sick_keeps_nobody_waiting(place: Place) -> None:
    probes = place.probes()
    run(probes, machine(A, B))
    assert probes.probing(machine(A, card("b", sick="Xid 79"))) == ()


def test_a_device_is_computed_on_again_when_told_to(place: Place) -> None:
    probes = place.probes()
    run(probes, machine(A, B))
    place.computed()
    place.fails("GPU-b", "it went bad")
    probes.again("GPU-b")
    [framework] = run(probes, machine(A, B))
    assert place.computed() == ["GPU-b"]
    assert (framework.devices, framework.problems) == (("GPU-a",), {"cuda": "cuda:1: it went bad"})


def test_a_device_that_is_mended_while_a_job_holds_it_keeps_nobody_waiting(place: Place) -> None:
    """The job may run for days, and its device's neighbours are free."""
    busy: set[str] = set()
    probes = place.probes(lambda: busy)
    run(probes, machine(A, B))
    place.computed()
    busy.add("GPU-b")
    probes.again("GPU-b")
    assert probes.probing(machine(A, B)) == ()
    assert run(probes, machine(A, B)) == []
    assert place.computed() == []
    busy.clear()
    place.fails("GPU-b", "it went bad")
    assert [each.devices for each in run(probes, machine(A, B))] == [("GPU-a",)]


def test_an_interpreter_that_is_taken_away_and_is_back_is_told(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpulayer_worker.probes.probes._ASK_AGAIN_S", 0.0)
    monkeypatch.setattr("gpulayer_worker.probes.probes._LOOK_S", 0.01)
    probes = place.probes()
    probes.packages()
    home = Path(place.python)
    target = os.readlink(home)

    def away() -> None:
        home.unlink()

    def back() -> None:
        home.symlink_to(target)

    async def watch() -> list[str]:
        news: asyncio.Queue[str] = asyncio.Queue()

        def asked() -> None:
            news.put_nowait(probes.asked.problem if probes.asked is not None else "")

        task = asyncio.create_task(probes.watch(machine, lambda framework: None, asked))
        away()
        said = [await news.get()]
        back()
        said.append(await news.get())
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return said

    gone, found = asyncio.run(watch())
    assert gone == f"the interpreter for jobs, {home}, does not say what it has: No such file or directory"
    assert found == ""


def test_a_failure_is_tried_again_ever_more_seldom(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000_000.0
    monkeypatch.setattr("time.time", lambda: now)
    place.fails("cpu", "some trouble")
    for pause_s in (60, 120, 240):
        run(place.probes(), machine())
        assert place.computed() == ["cpu"]
        now += pause_s - 1
        run(place.probes(), machine())
        assert place.computed() == []
        now += 1
    place.fails("cpu", "")
    [framework] = run(place.probes(), machine())
    assert framework.works == ("cpu",)
    now -= 10_000_000
    place.computed()
    run(place.probes(), machine())
    assert place.computed() == []  # what works is not asked again, whatever the clock says


def test_what_holds_until_something_changes_is_not_tried_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    install(place.env, "torch", "2.13.0+cpu", TORCH + COUNTS + "\nversion.cuda = None\n")
    run(place.probes(), machine(A))
    place.computed()
    monkeypatch.setattr("time.time", lambda: 9e9)
    started = place.probes()
    assert [each.problems for each in started.known(machine(A))] == [{"cuda": "torch is a CPU build (2.13.0+cu130)"}]
    assert (run(started, machine(A)), place.computed()) == ([], [])


def test_a_device_with_a_job_on_it_is_not_computed_on(place: Place) -> None:
    busy = {"GPU-b"}
    probes = place.probes(busy=lambda: busy)
    assert run(probes, machine(A, B)) == []  # nothing is known of it: the framework is still being probed
    assert probes.names() == ("torch",)
    assert "GPU-b" not in place.computed()
    busy.clear()
    [framework] = run(probes, machine(A, B))
    assert (framework.devices, place.computed()) == (("GPU-a", "GPU-b"), ["GPU-b", "GPU-b"])


def test_of_a_device_with_a_job_on_it_what_held_before_holds(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    run(place.probes(), machine(A, B))
    place.computed()
    monkeypatch.setattr("gpulayer_worker.probes.asking.scripts_digest", lambda: "another")
    [framework] = run(place.probes(busy=lambda: {"GPU-b"}), machine(A, B))
    assert framework.devices == ("GPU-a", "GPU-b")
    assert "GPU-b" not in place.computed()


def test_a_framework_that_is_removed_is_told_without_a_version(place: Place) -> None:
    probes = place.probes()
    run(probes, machine())
    remove(place.env, "torch")
    assert run(probes, machine()) == [Framework(name="torch")]
    assert run(probes, machine()) == []


def test_what_is_installed_later_is_found_by_the_watch(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpulayer_worker.probes.probes._LOOK_S", 0.05)
    remove(place.env, "torch")
    probes = place.probes()
    assert probes.names() == ()

    async def watch() -> list[Framework]:
        found: asyncio.Queue[Framework] = asyncio.Queue()
        task = asyncio.create_task(probes.watch(lambda: machine(A), found.put_nowait))
        install(place.env, "torch", "2.13.0", TORCH + COUNTS)
        told = [await found.get()]
        place.fails("GPU-a", "it went bad")
        probes.again("GPU-a")
        told.append(await found.get())
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return told

    first, second = asyncio.run(watch())
    assert (first.devices, second.devices) == (("GPU-a",), ())
    assert second.problems == {"cuda": "it went bad"}


def test_an_interpreter_that_fails_for_a_while_says_nothing_of_its_frameworks(place: Place) -> None:
    probes = place.probes()
    run(probes, machine())
    home = Path(place.python)
    target = os.readlink(home)
    home.unlink()
    assert run(probes, machine()) == []
    home.symlink_to(target)


def test_a_cancelled_run_leaves_no_process_and_no_result(place: Place) -> None:
    install(place.env, "torch", "2.13.0", TORCH + COUNTS.replace("    if os", "    time.sleep(3600)\n    if os"))
    probes = place.probes()

    async def cancelled() -> None:
        task = asyncio.create_task(probes.run(machine(), lambda framework: None))
        await asyncio.to_thread(until, place.note.exists, "the probe to compute")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(cancelled())
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
    assert place.probes().known(machine()) == ()


# ---------------------------------------------------------------- one device


def device(probes: Probes, inventory: Inventory, uuid: str) -> str:
    """What is said of one device, by an agent that has probed its frameworks."""

    async def ask() -> str:
        await probes.run(inventory, lambda framework: None)
        return await probes.probe_device(uuid)

    return asyncio.run(ask())


def test_a_device_that_computes_is_well(place: Place) -> None:
    assert device(place.probes(), machine(A, B), "GPU-b") == ""
    assert place.computed()[-2:] == ["GPU-b", "GPU-b"]


def test_a_device_that_does_not_compute_any_more_is_sick(place: Place) -> None:
    probes = place.probes()
    run(probes, machine(A))
    place.fails("GPU-a", "CUDA error: uncorrectable ECC error encountered")
    assert device(place.probes(), machine(A), "GPU-a") == "CUDA error: uncorrectable ECC error encountered (torch)"
    assert device(place.probes(), machine(A), "GPU-a") == "CUDA error: uncorrectable ECC error encountered (torch)"
    place.fails("GPU-a", "")
    assert device(place.probes(), machine(A), "GPU-a") == ""


def test_a_device_whose_memory_others_hold_is_not_sick(place: Place) -> None:
    probes = place.probes()
    run(probes, machine(A))
    place.fails("GPU-a", "CUDA out of memory. Tried to allocate 2.00 MiB")
    assert device(probes, machine(A), "GPU-a") == ""


def test_a_device_that_is_gone_is_told(place: Place) -> None:
    assert device(place.probes(), machine(A), "GPU-b") == "it is not there any more"


def test_a_framework_that_never_worked_there_says_nothing_of_a_device(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def by_driver(self: Probes, inventory: Inventory, uuid: str) -> Awaitable[str]:
        asked.append(uuid)
        return asyncio.sleep(0, "")

    monkeypatch.setattr(Probes, "_by_driver", by_driver)
    place.fails("GPU-a", "its libraries are broken")
    assert device(place.probes(), machine(A), "GPU-a") == ""
    assert asked == ["GPU-a"]


def test_without_a_framework_that_works_there_the_driver_is_asked(place: Place) -> None:
    remove(place.env, "torch")
    said = device(place.probes(), machine(A), "GPU-a")  # no machine has such a device
    assert said.endswith(" (the CUDA driver)")


# ---------------------------------------------------------------- at once


def test_all_are_probed_at_once_and_kept(place: Place) -> None:
    [framework] = probe_all(place.python, machine(A), place.data)
    assert framework.works == ("cpu", "cuda")
    place.computed()
    assert probe_all(place.python, machine(A), place.data) == (framework,)
    assert place.computed() == []
    assert place.probes().known(machine(A)) == (framework,)
