"""What Jupyter finds in the package."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import gpulayer_jupyter

HEAVY = ("jupyter_server", "tornado", "traitlets", "gpulayer_server", "asyncio", "httpx")
ENABLED = Path(gpulayer_jupyter.__file__).parents[1] / "config" / "gpulayer.json"


def test_the_server_loads_the_application() -> None:
    from gpulayer_jupyter.extension import GpulayerApp

    assert gpulayer_jupyter._jupyter_server_extension_points() == [{"module": "gpulayer_jupyter", "app": GpulayerApp}]
    assert GpulayerApp.name == "gpulayer"
    assert GpulayerApp.get_extension_package() == "gpulayer_jupyter"


def test_the_panel_lies_beside_it() -> None:
    assert gpulayer_jupyter._jupyter_labextension_paths() == [{"src": "labextension", "dest": "gpulayer"}]


def test_it_enables_itself() -> None:
    assert json.loads(ENABLED.read_text()) == {"ServerApp": {"jpserver_extensions": {"gpulayer_jupyter": True}}}


def test_importing_it_is_light() -> None:
    code = "import sys; before = set(sys.modules); import gpulayer_jupyter; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {name.split(".")[0] for name in done.stdout.split()} & set(HEAVY)


def test_loading_the_extension_does_not_load_the_server_yet() -> None:
    """It takes its time, and a server with a remote control plane never needs it."""
    code = "import sys; import gpulayer_jupyter.extension; print('gpulayer_server' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
