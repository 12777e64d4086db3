"""The wheel: built, its contents listed, installed into a fresh environment, and used from there."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT_S = 300


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    (found,) = out.glob("gpulayer-*.whl")
    return found


def test_the_wheel_holds_what_ships_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    print("\n".join(names))
    tops = {name.split("/")[0] for name in names}
    info = {top for top in tops if top.endswith((".dist-info", ".data"))}
    assert tops - info == {"gpulayer", "gpulayer_server", "gpulayer_worker", "gpulayer_jupyter"}
    for needed in (
        "gpulayer/py.typed",
        "gpulayer_server/store/statements.sql",
        "gpulayer_server/store/migrations/001_first.sql",
        "gpulayer_worker/kernel/main.py",
        "gpulayer_worker/keeper/__main__.py",
        "gpulayer_jupyter/labextension/package.json",
    ):
        assert needed in names
    assert not [name for name in names if "test" in name.split("/")[-1]]
    data = [name.partition(".data/data/")[2] for name in names if ".data/data/" in name]
    panel = "share/jupyter/labextensions/gpulayer"
    assert {f"{panel}/package.json", f"{panel}/install.json"} < set(data)
    assert [name for name in data if name.startswith(f"{panel}/static/remoteEntry.")]
    assert "etc/jupyter/jupyter_server_config.d/gpulayer.json" in data


@pytest.mark.timeout(ENVIRONMENT_S)
def test_a_fresh_environment_runs_it(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel, cwd=tmp_path)
    said = run(python, "-c", "import gpulayer; print(gpulayer.__version__)", cwd=tmp_path)
    assert (
        said.strip() == run(sys.executable, "-c", "import gpulayer; print(gpulayer.__version__)", cwd=tmp_path).strip()
    )
    assert "join" in run(tmp_path / "env" / "bin" / "gpulayer-worker", "--help", cwd=tmp_path)
    assert "--local-worker" in run(python, "-m", "gpulayer_server", "--help", cwd=tmp_path)
