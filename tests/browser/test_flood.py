"""A cell that prints 200 MB: the page stays small, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.lab import Lab, saved_text
from tests.support.processes import until

LINES = 200_000
FLOOD = f"""%%gpulayer
line = "x" * 990
for number in range({LINES}):
    print(f"{{number:08d}} {{line}}")"""


def heap_bytes(page: Any) -> int:
    """The page's heap, after a forced collection."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    return int(session.send("Runtime.getHeapUsage")["usedSize"])


@pytest.mark.timeout(300)
def test_head_and_tail_are_shown_all_of_it_is_kept_and_the_page_stays_small(
    opened: Callable[..., Any], lab: Lab
) -> None:
    notebook = opened(FLOOD)
    before = heap_bytes(notebook.page)
    notebook.run(1)
    notebook.await_text(1, "done on laptop", timeout_s=240)
    notebook.await_end(1)
    assert heap_bytes(notebook.page) - before < 100_000_000
    text = saved_text(notebook.save().cells[1])
    assert "00000000 xxx" in text
    assert f"{LINES - 1:08d} xxx" in text
    assert "left out here" in text
    assert len(text) < 2_000_000
    size = until(lambda: lab.deployment.api.jobs(limit=1)[0].end_offset, "the job's end")  # a commit after its cell's
    assert size > 200_000_000
