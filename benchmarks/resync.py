"""A tree of 2,000 files on its way into a workspace, through a control plane, against `rsync -az` of the same tree.

Ours is the notebook's scan and upload and the worker's making of a workspace, in this process, with the control plane
that the benchmark's notebook started beside it: it stores a large upload's blobs where they belong. A local worker
reads the control plane's blobs where they lie; a worker elsewhere fetches them and stores them once more, here without
a network between. rsync writes straight into its target.
"""

from __future__ import annotations

import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.kernel import CellFailed
from benchmarks.report import Report, median
from gpulayer.notebook.folder import Source
from gpulayer.protocol.endpoint import Endpoint
from gpulayer.source import Bundle, scan
from gpulayer.source.blobs import Blobs
from gpulayer_worker.workspace import Workspaces

FILES = 2_000
_FILE_BYTES = 20_000
_WORDS = 4_000
_SETTLED_S = 0.15  # after this a stamp is no longer 'just now'


@dataclass(frozen=True, kw_only=True)
class Times:
    """Seconds of one sync, ours by its parts. `rsync_s` is 0 where rsync is not installed."""

    scan_s: float
    send_s: float
    local_s: float  # a local worker's workspace
    fetched_s: float  # that of a worker elsewhere
    rsync_s: float

    def ours_s(self, worker: str) -> float:
        """From the scan's start until the workspace of the 'local' worker, or the one that 'fetched', is ready."""
        return self.scan_s + self.send_s + (self.local_s if worker == "local" else self.fetched_s)


def measure(report: Report, folder: Path, endpoint: Endpoint, blobs: Path, *, firsts: int, resyncs: int) -> None:
    """Add the rows of both syncs. All that is measured lies in `folder`, and in the control plane's `blobs`."""
    if shutil.which("rsync") is None:
        print("rsync is not installed: no ratio to it was measured (apt-get install rsync)", file=sys.stderr)
    trip = _Trip(folder, endpoint, blobs)
    trees = [tree(folder / f"tree{number}", seed=number) for number in range(firsts)]
    times = [trip.first(path) for path in trees]
    _add(report, "first_sync", times, "local", goal="<= 1.5")
    _add(report, "first_sync_fetched", times, "fetched")
    time.sleep(_SETTLED_S)
    times = [trip.again(trees[-1], number) for number in range(resyncs)]
    _add(report, "resync", times, "fetched", goal="<= 1.0")
    _add(report, "resync_local", times, "local")
    trip.check(trees[-1])


def _add(report: Report, name: str, times: list[Times], worker: str, goal: str = "") -> None:
    parts = {
        "scan": [each.scan_s for each in times],
        "send": [each.send_s for each in times],
        "workspace": [each.local_s if worker == "local" else each.fetched_s for each in times],
    }
    note = ", ".join(f"{part} {1000 * statistics.median(values):.1f}" for part, values in parts.items())
    ours_s = [each.ours_s(worker) for each in times]
    report.add(median(f"cell.{name}_ms", [1000 * value for value in ours_s], "ms", note=note))
    if all(each.rsync_s for each in times):
        rsync_ms = 1000 * statistics.median(each.rsync_s for each in times)
        note = f"{FILES} files, {FILES * _FILE_BYTES / 1e6:.0f} MB; rsync -az {rsync_ms:.0f} ms"
        ratios = [value / each.rsync_s for value, each in zip(ours_s, times, strict=True)]
        report.add(median(f"cell.{name}_ratio", ratios, "", note=note, goal=goal))


class _Trip:
    """A notebook's side, the sides of two workers, and rsync's target beside them."""

    def __init__(self, folder: Path, endpoint: Endpoint, blobs: Path):
        self._folder = folder
        self._endpoint = endpoint
        self._source = Source(blobs.parent)  # a notebook of this machine: the data folder is its own too
        self._local = Workspaces(Blobs(folder / "local"), lambda: endpoint, lambda: blobs)
        self._elsewhere = Workspaces(Blobs(folder / "elsewhere"), lambda: endpoint)
        self._name = ""
        self._rsync_first = False

    def first(self, path: Path) -> Times:
        """Into empty workspaces, from a tree of which nothing is known anywhere."""
        self._name = path.name
        return self._all(path)

    def again(self, path: Path, number: int) -> Times:
        """After one of its files was changed, just now."""
        changed = path / "package_07" / "module_0351.py"
        # Of another size each time: rsync looks at that, and at whole seconds.
        changed.write_bytes(b"# version %d\n" % number + changed.read_bytes())
        return self._all(path)

    def _all(self, path: Path) -> Times:
        """By turns rsync first and last, so that neither always finds the files in warm memory."""
        self._rsync_first = not self._rsync_first
        rsync_s = self._rsync(path) if self._rsync_first else 0.0
        start = time.perf_counter()
        bundle = self._source.scan(str(path))
        scanned = time.perf_counter()
        self._source.send(bundle, self._endpoint, _quiet)
        return Times(
            scan_s=scanned - start,
            send_s=time.perf_counter() - scanned,
            local_s=self._workspace(self._local, "local", bundle),
            fetched_s=self._workspace(self._elsewhere, "fetched", bundle),
            rsync_s=rsync_s or self._rsync(path),
        )

    def _target(self, kind: str) -> Path:
        return self._folder / f"{self._name}-{kind}"

    def _workspace(self, workspaces: Workspaces, kind: str, bundle: Bundle) -> float:
        start = time.perf_counter()
        target = self._target(kind)
        workspaces.update(bundle.manifest.digest, target, target.with_name(f"{target.name}.json"), _quiet)
        return time.perf_counter() - start

    def _rsync(self, path: Path) -> float:
        if shutil.which("rsync") is None:
            return 0.0
        start = time.perf_counter()
        subprocess.run(["rsync", "-az", f"{path}/", f"{self._target('rsync')}/"], check=True)
        return time.perf_counter() - start

    def check(self, path: Path) -> None:
        """All of them brought what is at home. Raises `CellFailed`."""
        wanted = scan(path, explicit=True).manifest
        for target in filter(Path.exists, map(self._target, ("local", "fetched", "rsync"))):
            if scan(target, explicit=True).manifest != wanted:
                raise CellFailed(f"{target.name} is not what was sent")


def tree(folder: Path, seed: int) -> Path:
    """2,000 files of 20 kB: three quarters are text that compresses to a half, the others do not compress."""
    dice = random.Random(seed)
    words = ["".join(dice.choices("abcdefghijklmnopqrstuvwxyz_", k=dice.randint(2, 10))) for _ in range(_WORDS)]
    texts = [_text(dice, words) for _ in range(50)]
    for number in range(FILES):
        package = folder / f"package_{number // 50:02d}"
        package.mkdir(parents=True, exist_ok=True)
        if number % 4 == 3 and number != 351:
            (package / f"module_{number:04d}.bin").write_bytes(dice.randbytes(_FILE_BYTES))
        else:
            begin = dice.randrange(_FILE_BYTES // 2)
            halves = (dice.choice(texts)[begin : begin + _FILE_BYTES // 2] for _ in range(2))
            (package / f"module_{number:04d}.py").write_bytes(b"# %d %d\n" % (seed, number) + b"".join(halves))
    return folder


def _text(dice: random.Random, words: list[str]) -> bytes:
    lines: list[str] = []
    size = 0
    while size < _FILE_BYTES:
        lines.append("    " * dice.randint(0, 3) + " ".join(dice.choices(words, k=dice.randint(2, 10))))
        size += len(lines[-1]) + 1
    return "\n".join(lines).encode()


def unchanged_scan_ms(folder: Path, repeats: int, pause: Callable[[], None]) -> list[float]:
    """Milliseconds of scans of a folder in which nothing has changed; `pause` runs before each."""
    source = Source(folder.with_name(f"{folder.name}-client"))
    source.scan(str(folder))
    times_ms: list[float] = []
    for _ in range(repeats):
        pause()
        start = time.perf_counter()
        source.scan(str(folder))
        times_ms.append(1000 * (time.perf_counter() - start))
    return times_ms


def _quiet(text: str) -> None:
    """Nobody looks at the progress."""
