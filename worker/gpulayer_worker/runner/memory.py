"""How much memory a runner has: its own, without the pages of files that it has mapped."""

from __future__ import annotations

import os
import sys
import time

_FRESH_NS = 50_000_000
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Memory:
    """Measures this process."""

    def __init__(self) -> None:
        self._fd = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC) if sys.platform == "linux" else -1
        self._bytes = 0
        self._at_ns = 0

    def recent_bytes(self) -> int:
        """As it was at most 50 ms ago."""
        return self._bytes if time.monotonic_ns() - self._at_ns < _FRESH_NS else self.bytes()

    def bytes(self) -> int:
        """As it is. Where the system does not tell (macOS), the most that it has been."""
        self._at_ns = time.monotonic_ns()
        if self._fd < 0:
            import resource

            self._bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        else:
            fields = os.pread(self._fd, 128, 0).split()
            self._bytes = (int(fields[1]) - int(fields[2])) * _PAGE_BYTES
        return self._bytes
