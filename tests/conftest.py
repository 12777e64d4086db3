"""What every test shares."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

# a build server judges a change by the same examples each time; by hand, each run draws new ones
settings.register_profile("ci", derandomize=True, deadline=None)
if os.environ.get("CI"):
    settings.load_profile("ci")

# on a machine of Google's no test asks its metadata server
os.environ.setdefault("NO_GCE_CHECK", "true")

# under `nohup` it is ignored, and so it would be in every process that a test starts
signal.signal(signal.SIGHUP, signal.SIG_DFL)
# and so is Ctrl-C in what a script starts in the background
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

#: Where `tests/run.py` wants the names of the tests that failed: it tells them once more at its end.
FAILED = "GPULAYER_TEST_FAILED"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep what failed, with the line that says why."""
    kept = os.environ.get(FAILED)
    if report.failed and kept and "PYTEST_XDIST_WORKER" not in os.environ:  # there, whoever started it hears, too
        crash = getattr(report.longrepr, "reprcrash", None)
        why = str(getattr(crash, "message", report.longrepr)).strip().splitlines()
        with Path(kept).open("a", encoding="utf-8") as file:
            file.write(f"{report.nodeid} ({report.when}): {(why or [''])[0][:300]}\n")
