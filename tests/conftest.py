"""What every test shares."""

from __future__ import annotations

import os
import signal

from hypothesis import settings

# a build server judges a change by the same examples each time; by hand, each run draws new ones
settings.register_profile("ci", derandomize=True, deadline=None)
if os.environ.get("CI"):
    settings.load_profile("ci")

# under `nohup` it is ignored, and so it would be in every process that a test starts
signal.signal(signal.SIGHUP, signal.SIG_DFL)
