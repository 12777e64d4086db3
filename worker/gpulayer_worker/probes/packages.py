"""Which packages of frameworks the interpreter for jobs has: asked of it in a short child process, once per change."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import msgspec

from gpulayer.protocol.base import Struct
from gpulayer_worker.environ import allowed
from gpulayer_worker.probes import scripts

NAMES = ("torch", "jax", "cupy", "mlx", "tensorflow")

_CUPY = ("cupy", "cupy-cuda11x", "cupy-cuda12x", "cupy-cuda13x", "cupy-rocm-5-0", "cupy-rocm-7-0")
_JAX = tuple(f"jax-{kind}-{part}" for kind in ("cuda12", "cuda13", "rocm60", "rocm7") for part in ("plugin", "pjrt"))

#: By framework: what brings it (the first one found gives its version), and other packages that change what it can.
_BRINGS: dict[str, tuple[str, ...]] = {
    "torch": ("torch",),
    "jax": ("jax",),
    "cupy": _CUPY,
    "mlx": ("mlx",),
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-macos", "tensorflow-rocm", "tf-nightly"),
}
_CHANGES: dict[str, tuple[str, ...]] = {
    "torch": ("triton", "numpy", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13"),
    "jax": ("jaxlib", *_JAX, "jax-metal", "numpy", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13"),
    "cupy": ("numpy",),
    "mlx": ("mlx-metal", "mlx-cpu", "mlx-cuda", "mlx-cuda-12", "mlx-cuda-13"),
    "tensorflow": ("tensorflow-metal", "numpy", "keras"),
}
_LIST_S = 15.0
_INSTALLED = Path(scripts.__file__).with_name("installed.py")
#: With one of these the agent imports from elsewhere than a job's interpreter, which gets none of them.
_ELSEWHERE = ("PATH", "HOME", "PLATLIBDIR", "NOUSERSITE", "USERBASE", "SAFEPATH")


class Packages(Struct, frozen=True, kw_only=True):
    """What an interpreter has of these."""

    path: str  # of the interpreter
    changed_ns: int = 0  # when its file changed last
    python: str = ""  # version
    folders: dict[str, int] = {}  # that it imports from, with their times of change in ns
    packages: dict[str, str] = {}  # versions by distribution
    problem: str = ""  # why it could not be asked

    @property
    def names(self) -> tuple[str, ...]:
        """The frameworks that are installed, in the order in which they are probed."""
        return tuple(name for name in NAMES if any(each in self.packages for each in _BRINGS[name]))

    def version(self, name: str) -> str:
        """A framework's version as installed; '' where it is not."""
        return next((self.packages[each] for each in _BRINGS[name] if each in self.packages), "")

    def of(self, name: str) -> dict[str, str]:
        """The versions of all packages that a framework's results depend on."""
        names = (*_BRINGS.get(name, ()), *_CHANGES.get(name, ()))
        return {each: self.packages[each] for each in names if each in self.packages}

    def current(self, path: str) -> bool:
        """Whether this is still true of the interpreter at `path`, as far as times of change tell."""
        at = {self.path: self.changed_ns} | self.folders
        return path == self.path and not self.problem and all(_changed(each) == then for each, then in at.items())


class _Answer(Struct, frozen=True):
    """What `installed.py` prints."""

    python: str
    folders: list[str]
    packages: dict[str, str]


def resolved(python: str) -> str:
    """The path of an interpreter that may be named as a command is; links stay, since an environment is one."""
    return os.path.abspath(shutil.which(python) or python)


def own(path: str) -> Packages | None:
    """As `look`, without a process, where the interpreter is this process's own; None where it is another one.

    For the first look of a process alone: what it imports from was decided when it began.
    """
    if path != os.path.abspath(sys.executable) or any(f"PYTHON{name}" in os.environ for name in _ELSEWHERE):
        return None
    if sys.flags.isolated or getattr(sys.flags, "safe_path", False) or sys.flags.no_user_site:
        return None
    folders = [folder for folder in sys.path[1:] if os.path.isdir(folder)]  # the first one is of how we were started
    packages: dict[str, str] = {}
    for name in _wanted():
        found = next(iter(metadata.Distribution.discover(name=name, path=sys.path[1:])), None)
        if found is not None:
            packages[name] = str(found.version or "")
    return Packages(
        path=path,
        changed_ns=_changed(path),
        python=platform.python_version(),
        folders={folder: _changed(folder) for folder in folders},
        packages=packages,
    )


def _wanted() -> list[str]:
    return sorted({each for table in (_BRINGS, _CHANGES) for names in table.values() for each in names})


def look(path: str) -> Packages:
    """Ask an interpreter, without importing any of them; takes tens of milliseconds. What fails is `problem`."""
    changed_ns = _changed(path)
    try:
        done = subprocess.run(
            [path, str(_INSTALLED), *_wanted()],
            env=allowed(),
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_LIST_S,
            start_new_session=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return _failed(path, f"gave no answer in {_LIST_S:.0f} s")
    except OSError as error:
        return _failed(path, error.strerror or str(error))
    for line in reversed(done.stdout.splitlines()):
        try:
            answer = msgspec.json.decode(line, type=_Answer)
        except msgspec.DecodeError:  # something that the interpreter prints at its start
            continue
        folders = {folder: _changed(folder) for folder in answer.folders}
        return Packages(
            path=path, changed_ns=changed_ns, python=answer.python, folders=folders, packages=answer.packages
        )
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return _failed(path, lines[-1][:200] if lines else f"it ended with exit code {done.returncode}")


def _failed(path: str, why: str) -> Packages:
    return Packages(path=path, problem=f"the interpreter for jobs, {path}, does not say what it has: {why}")


def _changed(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0
