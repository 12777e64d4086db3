"""The check for CUDA machines, as far as it can be run without one."""

import glob
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_check.py"

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="it is for the machine's Python 3.12")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], cwd="/", check=False, text=True, capture_output=True, timeout=110
    )


@pytest.mark.skipif(bool(glob.glob("/dev/nvidia[0-9]*")), reason="there is a device here")
def test_without_a_device_it_says_so_and_checks_nothing(tmp_path: Path) -> None:
    done = run("--out", str(tmp_path / "out.json"))
    assert done.returncode == 0, done.stderr
    first, last = done.stdout.splitlines()
    assert "no NVIDIA device" in first
    assert json.loads(last) == {"skipped": True} == json.loads((tmp_path / "out.json").read_text())


def test_the_same_steps_on_the_cpu(tmp_path: Path) -> None:
    done = run("--accelerator", "cpu", "--minutes", "1.5", "--out", str(tmp_path / "out.json"))
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == json.loads((tmp_path / "out.json").read_text())
    assert found["inventory"]["cores"] >= 1
    assert found["product"]["error"] < 1e-4
    assert found["without"]["devices"] == 0
    for name in ("agent_killed", "keeper_killed"):
        assert found[name]["state"] == "succeeded"
        assert found[name]["before"] != found[name]["after"]
    assert found["end"] == {"left": 0}
