"""Which ends of jobs smell of a sick device, and how such a device comes back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulayer.protocol.types import Outcome, State
from gpulayer_worker.quarantine import FIRST_PAUSE_S, LAST_PAUSE_S, Quarantine, smell


def failed(text: str) -> Outcome:
    return Outcome(state=State.FAILED, tail=text)


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        "cudaErrorECCUncorrectable: uncorrectable ECC error encountered",
        "CUDA_ERROR_ECC_UNCORRECTABLE",
        "CUDA error: uncorrectable NVLink error detected during the execution",
        "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.",
        "Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost.",
    ],
)
def test_of_some_the_device_takes_no_work_until_it_is_probed(text: str) -> None:
    found = smell(failed(f"Traceback\n  {text}\nlast line"))
    assert found is not None
    assert found.sure
    assert found.words == text


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: CUDA error: unknown error",
        "CUDA error: unspecified launch failure",
        "RuntimeError: No CUDA-capable device is detected",
        "CUDA error: CUDA-capable device(s) is/are busy or unavailable",
    ],
)
def test_of_others_it_is_only_probed(text: str) -> None:
    found = smell(Outcome(state=State.FAILED, error=text))
    assert found is not None
    assert not found.sure


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: CUDA error: device-side assert triggered",
        "CUDA error: an illegal memory access was encountered",
        "CUDA error: misaligned address",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.",
        "CUBLAS_STATUS_NOT_INITIALIZED",
        "NVRM: Xid (PCI:0000:3b:00): 31, pid=1234, MMU Fault",
        "NVRM: Xid (PCI:0000:3b:00): 13, Graphics Exception",
        "AssertionError: ecc",
        "",
    ],
)
def test_the_programs_own_faults_smell_of_nothing(text: str) -> None:
    assert smell(failed(text)) is None


@given(st.text())
def test_any_end_can_be_smelt_at(text: str) -> None:
    found = smell(failed(text))
    assert found is None or len(found.words) <= 200


def test_a_suspect_is_probed_and_goes_on_meanwhile() -> None:
    quarantine = Quarantine()
    quarantine.suspect("a", "unknown error", 0.0, sure=False)
    assert quarantine.reasons() == {}
    assert quarantine.due(0.0) == ["a"]
    assert quarantine.due(0.0) == []  # it is being probed
    quarantine.probed("a", "", 1.0)
    assert quarantine.due(1e9) == []


def test_one_that_is_sick_is_alone_and_mended_by_a_good_probe() -> None:
    quarantine = Quarantine()
    quarantine.suspect("a", "Xid 79", 0.0, sure=True)
    assert quarantine.reasons() == {"a": "Xid 79"}
    assert quarantine.due(0.0) == ["a"]
    quarantine.probed("a", "it computes 3 instead of 4", 1.0)
    assert quarantine.reasons() == {"a": "it computes 3 instead of 4"}
    assert quarantine.due(FIRST_PAUSE_S) == []
    assert quarantine.due(FIRST_PAUSE_S + 1) == ["a"]
    quarantine.probed("a", "", FIRST_PAUSE_S + 2)
    assert quarantine.reasons() == {}


def test_the_pauses_grow_to_an_hour() -> None:
    quarantine, now_s, pauses = Quarantine(), 0.0, []
    quarantine.suspect("a", "sick", now_s, sure=True)
    for _ in range(12):
        quarantine.due(now_s)
        quarantine.probed("a", "still sick", now_s)
        before_s = now_s
        while not quarantine.due(now_s):
            now_s += 1.0
        quarantine.probed("a", "still sick", now_s)
        pauses.append(now_s - before_s)
    assert pauses == sorted(pauses)
    assert pauses[0] == FIRST_PAUSE_S
    assert pauses[-1] == LAST_PAUSE_S


def test_a_suspicion_that_grows_during_a_probe_that_fails_is_kept() -> None:
    quarantine = Quarantine()
    quarantine.suspect("a", "unknown error", 0.0, sure=False)
    quarantine.due(0.0)
    quarantine.suspect("a", "Xid 48", 0.5, sure=True)
    assert quarantine.reasons() == {"a": "Xid 48"}
    quarantine.probed("a", "no answer", 1.0)
    assert quarantine.reasons() == {"a": "no answer"}


def test_what_is_heard_while_a_probe_passes_has_it_probed_once_more() -> None:
    quarantine = Quarantine()
    quarantine.suspect("a", "unknown error", 0.0, sure=False)
    quarantine.due(0.0)
    quarantine.suspect("a", "Xid 94", 0.5, sure=True)
    quarantine.probed("a", "", 1.0)
    assert quarantine.reasons() == {"a": "Xid 94"}
    assert quarantine.due(FIRST_PAUSE_S) == []
    assert quarantine.due(FIRST_PAUSE_S + 1.0) == ["a"]
    quarantine.probed("a", "", FIRST_PAUSE_S + 2.0)
    assert quarantine.reasons() == {}


def test_one_that_is_not_there_waits_and_goes_with_a_machine_that_does_not_have_it() -> None:
    quarantine = Quarantine()
    quarantine.suspect("a", "Xid 94", 0.0, sure=True)
    for at_s in (0.0, FIRST_PAUSE_S, 2 * FIRST_PAUSE_S):
        assert quarantine.due(at_s) == ["a"]
        quarantine.absent("a", at_s)
    assert quarantine.reasons() == {"a": "Xid 94"}
    quarantine.absent("a", 3 * FIRST_PAUSE_S, for_good=True)
    assert quarantine.reasons() == {}


def test_where_nothing_can_probe_it_may_work_again_after_a_pause() -> None:
    quarantine = Quarantine()
    quarantine.suspect("a", "Xid 94", 0.0, sure=True)
    quarantine.due(0.0)
    quarantine.probed("a", None, 1.0)
    assert quarantine.reasons() == {"a": "Xid 94"}
    assert quarantine.due(FIRST_PAUSE_S + 1) == ["a"]
    quarantine.probed("a", None, FIRST_PAUSE_S + 1)
    assert quarantine.reasons() == {}


def test_the_next_agent_takes_it_up_and_probes_at_once() -> None:
    before, after = Quarantine(), Quarantine()
    before.suspect("a", "Xid 79", 0.0, sure=True)
    before.suspect("b", "unknown error", 0.0, sure=False)
    after.take_up(before.note(), 500.0)
    assert after.reasons() == {"a": "Xid 79"}
    assert after.due(500.0) == ["a"]


@pytest.mark.parametrize("note", [None, {}, {"sick": None}, {"sick": ["a"]}])
def test_a_note_that_is_none_is_no_trouble(note: dict[str, object] | None) -> None:
    quarantine = Quarantine()
    quarantine.take_up(note, 0.0)
    assert quarantine.reasons() == {}
