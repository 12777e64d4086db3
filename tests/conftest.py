"""What every test shares."""

from __future__ import annotations

import os

from hypothesis import settings

# a build server judges a change by the same examples each time; by hand, each run draws new ones
settings.register_profile("ci", derandomize=True, deadline=None)
if os.environ.get("CI"):
    settings.load_profile("ci")
