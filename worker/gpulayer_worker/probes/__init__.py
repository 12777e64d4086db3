"""Which frameworks really work in the interpreter for jobs, and on which devices.

Importable is not usable: each framework that is installed there computes something with a known result on the CPU and
on each device, in a process of its own with a deadline and low priority. `Probes` does that for an agent, keeps what
came of it, and does it again when what it depends on changes; `probe_all` does it once.
"""

from __future__ import annotations

from gpulayer_worker.probes.packages import NAMES
from gpulayer_worker.probes.probes import Probes, probe_all

__all__ = ["NAMES", "Probes", "probe_all"]
