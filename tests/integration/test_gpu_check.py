"""The check for CUDA machines, as far as it can be run without one."""

import glob
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_check.py"


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


def make_wheel(folder: Path, name: str) -> None:
    """A wheel with one module."""
    info = f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": "VALUE = 1\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)


def test_the_same_steps_on_the_cpu(tmp_path: Path) -> None:
    pytest.importorskip("pip")
    make_wheel(tmp_path, "gpulayer_check_dummy")
    make_wheel(tmp_path, "psutil")  # older than what is here: not installed
    wheels = ("--wheels", str(tmp_path))
    done = run("--accelerator", "cpu", "--minutes", "1.5", "--out", str(tmp_path / "out.json"), *wheels)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "installed from wheels: gpulayer-check-dummy\n" in done.stdout
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == json.loads((tmp_path / "out.json").read_text())
    assert found["inventory"]["cores"] >= 1
    assert found["product"]["error"] < 1e-4
    assert found["without"]["devices"] == 0
    assert found["peak"]["peak_bytes"] == 1 << 30
    assert found["foreign"]["seen"]
    assert found["sick"]["refused"] in ("queued", "rejected")
    assert found["sick"]["after"] == "succeeded"
    assert any("uncorrectable ECC" in words for words in found["sick"]["probe"].values())
    for name in ("agent_killed", "keeper_killed"):
        assert found[name]["state"] == "succeeded"
        assert found[name]["before"] != found[name]["after"]
    assert found["end"] == {"left": 0}
