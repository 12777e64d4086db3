"""Checks on a CUDA machine, in a few minutes and without any registry: inventory with links, probes of frameworks,
cells and commands on the device, peak memory, foreign processes, a device that seems sick, kills.

    python benchmarks/gpu_check.py --wheels DIR --out gpu_check.json

The interpreter that runs this holds torch. What of our own dependencies it lacks comes from the folder of wheels, into
a temporary environment on top of it; the checkout itself is used as it is. `--accelerator cpu` runs the same steps on
any machine, those about devices over a card that is made up. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import glob
import importlib.metadata
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from types import FrameType

_ROOT = Path(__file__).resolve().parents[1]
_PACKAGES = (_ROOT, _ROOT / "server", _ROOT / "worker")


class CheckFailed(RuntimeError):
    """A step that did not do what it should: what, and what was seen."""


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 all checks hold or no device is here, 1 one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="the folder of wheels")
    parser.add_argument("--minutes", type=float, default=4.0, help="give up after so long (default 4)")
    parser.add_argument("--accelerator", choices=("cuda", "cpu"), default="cuda", help="cpu: the same steps anywhere")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the JSON object there too")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.accelerator == "cuda" and not glob.glob("/dev/nvidia[0-9]*"):
        print("no NVIDIA device here (/dev/nvidia0 is not there): nothing was checked")
        return _report({"skipped": True}, options.out)
    if not options.inside:
        return _inside_an_environment(sys.argv[1:] if argv is None else argv, options.wheels)
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(int(60 * options.minutes))
    from benchmarks.gpucheck.steps import check

    result = check(options.accelerator)
    signal.alarm(0)
    return _report(result, options.out)


def _too_long(number: int, frame: FrameType | None) -> None:
    raise CheckFailed("the time is over (--minutes)")


def _report(result: dict[str, object], out: Path | None) -> int:
    line = json.dumps(result)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(line + "\n", encoding="utf-8")
    print(line, flush=True)
    return 1 if result.get("failed") else 0


# ---------------------------------------------------------------- an environment on top of this interpreter


def _inside_an_environment(argv: list[str], wheels: Path | None) -> int:
    """Run this again in an environment that has our dependencies and the checkout.

    Kernels get no PYTHONPATH, so that what they need has to belong to their interpreter: it is a virtual environment
    that looks into this one's packages too.
    """
    folder = Path(tempfile.mkdtemp(prefix="gpu-check-", dir="/tmp"))
    try:
        added = _install_missing(wheels, folder / "packages")
        venv.EnvBuilder(with_pip=False, symlinks=True).create(folder / "venv")
        lines = [str(path) for path in (*_PACKAGES, folder / "packages")]
        lines += [f"import site; site.addsitedir({path!r})" for path in sys.path if path.endswith("-packages")]
        (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
        (site / "checkout.pth").write_text("\n".join(lines) + "\n")
        print(f"python {sys.version.split()[0]}; installed from wheels: {', '.join(added) or 'nothing was missing'}")
        sys.stdout.flush()
        command = [str(folder / "venv" / "bin" / "python"), "-m", "benchmarks.gpu_check", "--inside", *argv]
        return subprocess.run(command, check=False).returncode
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _install_missing(wheels: Path | None, target: Path) -> list[str]:
    """Install those wheels whose distributions are not here, or too old; their names."""
    target.mkdir(parents=True)
    wanted = _wanted()
    chosen = [path for path in sorted(wheels.glob("*.whl")) if _is_missing(_name(path), wanted)] if wheels else []
    if chosen:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
        subprocess.run([*pip, "--target", str(target), *map(str, chosen)], check=True)
    names = [_name(path) for path in chosen]
    lacking = [name for name in wanted if name not in names and _is_missing(name, wanted)]
    if lacking:
        raise SystemExit(f"gpu_check: not installed, and no wheel of it given: {', '.join(lacking)} (--wheels DIR)")
    return names


def _wanted() -> dict[str, tuple[int, ...]]:
    """Our own dependencies and their lowest versions."""
    text = (_ROOT / "pyproject.toml").read_text(encoding="utf-8")
    block = re.search(r"^dependencies = \[(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    if block is None:
        raise CheckFailed(f"{_ROOT / 'pyproject.toml'} lists no dependencies")
    found = re.findall(r'"([A-Za-z0-9._-]+)\s*(?:>=\s*([0-9.]+))?', block.group(1))
    return {_normal(name): _numbers(lowest or "0") for name, lowest in found}


def _is_missing(name: str, wanted: dict[str, tuple[int, ...]]) -> bool:
    try:
        return _numbers(importlib.metadata.version(name)) < wanted.get(name, ())
    except importlib.metadata.PackageNotFoundError:
        return True


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _name(wheel: Path) -> str:
    return _normal(wheel.name.split("-")[0])


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    sys.exit(main())
