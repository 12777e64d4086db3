"""Widgets of a cell on a worker: shown live, right at the end, and again after a page was loaded again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.conftest import FILES
from tests.support.deployment import Deployment
from tests.support.notebook import Notebook

pytest.importorskip("ipywidgets")

PYTHON6 = os.environ.get("GPULAYER_TEST_IPYKERNEL6", "")
BARS = (
    "from tqdm.notebook import tqdm\n"
    "for n in tqdm(range(3), desc='steps', bar_format='{l_bar}{bar}{n_fmt}', mininterval=0):\n    pass"
)


def packages(python: str) -> tuple[str, str]:
    """The folder of an interpreter's packages, and its version."""
    look = "import sys, sysconfig; print(sysconfig.get_path('purelib'), *sys.version_info[:2])"
    folder, _, version = subprocess.check_output([python, "-c", look], text=True).strip().partition(" ")
    return folder, version


@pytest.fixture(params=["ipykernel 7", "ipykernel 6"], scope="module")
def here(request: pytest.FixtureRequest, shared: Deployment) -> Iterator[Notebook]:
    """A notebook whose own kernel is of this version."""
    env: dict[str, str] = {}
    if request.param == "ipykernel 6":
        if not PYTHON6:
            pytest.skip("GPULAYER_TEST_IPYKERNEL6 names no interpreter that has ipykernel 6")
        folder, version = packages(PYTHON6)
        if version != packages(sys.executable)[1]:
            pytest.skip(f"{PYTHON6} is another Python: its packages can't be used here")
        env["PYTHONPATH"] = folder  # its ipykernel comes before ours; ours is all the rest
    notebook = shared.notebook(FILES, env=env)
    found = notebook.run("import ipykernel\nprint(ipykernel.__version__)").text()
    assert found.startswith(request.param[-1])
    yield notebook
    notebook.close()


def states(comms: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Each widget's state as a front end has it after these messages."""
    found: dict[str, dict[str, Any]] = {}
    for message in comms:
        found.setdefault(message["comm_id"], {}).update((message.get("data") or {}).get("state") or {})
    return found


def test_a_bar_moves_while_the_cell_runs_and_is_right_at_the_end(here: Notebook) -> None:
    cell = here.start(f"%%gpulayer\n{BARS}")
    cell.wait()
    bars = [message["comm_id"] for message in cell.out.comms
            if message.get("data", {}).get("state", {}).get("_model_name") == "FloatProgressModel"]  # fmt: skip
    [bar] = set(bars)
    values = [
        message["data"]["state"]["value"]
        for message in cell.out.comms
        if message["comm_id"] == bar and "value" in message.get("data", {}).get("state", {})
    ]
    assert values == sorted(values)
    assert values[-1] == 3
    state = states(cell.out.comms)[bar]
    assert (state["max"], state["bar_style"]) == (3.0, "success")
    [view] = [output for output in cell.out.joined() if output["output_type"] == "display_data"]
    assert view["data"]["application/vnd.jupyter.widget-view+json"]["model_id"] in states(cell.out.comms)
    assert "steps" in view["data"]["text/plain"]


def test_a_page_that_is_loaded_again_finds_the_widgets_of_a_cell_that_is_long_gone(here: Notebook) -> None:
    cell = here.start("%%gpulayer\nfrom ipywidgets import IntSlider\nslider = IntSlider(3)\nslider.value = 7\nslider")
    cell.wait()
    [slider] = [name for name, state in states(cell.out.comms).items() if state["_model_name"] == "IntSliderModel"]
    assert here.comm_info("jupyter.widget").get(slider) == {"target_name": "jupyter.widget"}
    [answer] = here.tell_comm(slider, {"method": "request_state"})
    assert answer["data"]["method"] == "update"
    assert answer["data"]["state"]["value"] == 7
    assert answer["data"]["state"] == states(cell.out.comms)[slider]
    assert here.tell_comm(slider, {"method": "update", "state": {"value": 9}}) == []
    [answer] = here.tell_comm(slider, {"method": "request_state"})
    assert answer["data"]["state"]["value"] == 9


def test_a_page_that_asks_for_all_widgets_is_told_of_all(here: Notebook) -> None:
    """Those of workers, and the notebook's own."""
    far = here.start("%%gpulayer\nfrom ipywidgets import IntSlider\nIntSlider(7)")
    near = here.start("from ipywidgets import IntSlider\nown = IntSlider(8)\nown")
    for cell in (far, near):
        cell.wait()
    other = here.start("%%gpulayer\nfrom ipywidgets import IntSlider\nIntSlider(9)")
    other.wait()
    assert here.open_comm("all", "jupyter.widget.control", "1.0.0") == []
    [answer] = here.tell_comm("all", {"method": "request_states"})
    sliders = {name for cell in (far, near, other) for name, state in states(cell.out.comms).items()
               if state["_model_name"] == "IntSliderModel"}  # fmt: skip
    told = answer["data"]["states"]
    assert sorted(told[name]["state"]["value"] for name in sliders) == [7, 8, 9]
    assert {told[name]["model_name"] for name in sliders} == {"IntSliderModel"}


def test_attach_shows_widgets_again_and_closes_none(here: Notebook) -> None:
    cell = here.start(f"%%gpulayer\n{BARS}")
    cell.wait()
    job = cell.out.status[-1].rpartition("job ")[2]
    again = here.start(f"%gpulayer attach {job}")
    again.wait()
    assert states(again.out.comms) == states(cell.out.comms)
    assert "comm_close" not in {message["kind"] for message in again.out.comms}


def test_an_output_widget_takes_the_cells_own_output(here: Notebook) -> None:
    code = "from ipywidgets import Output\nout = Output()\ndisplay(out)\nwith out:\n    print('inside')\nprint('after')"
    cell = here.start(f"%%gpulayer\n{code}")
    cell.wait()
    taken = [message["data"]["state"]["msg_id"] for message in cell.out.comms
             if message["kind"] == "comm_msg" and "msg_id" in message["data"].get("state", {})]  # fmt: skip
    assert taken == [cell.msg_id, ""]


def test_bytes_of_a_widget_travel(here: Notebook) -> None:
    cell = here.start("%%gpulayer\nfrom ipywidgets import Image\nImage(value=bytes(range(256)))")
    cell.wait()
    [picture] = [message for message in cell.out.comms if message["buffers"]]
    assert picture["buffers"] == [bytes(range(256)).hex()]
    assert picture["data"]["buffer_paths"] == [["value"]]
    [answer] = here.tell_comm(picture["comm_id"], {"method": "request_state"})
    assert answer["buffers"] == picture["buffers"]


def test_in_a_terminal_the_text_is_shown_and_no_comm_made(deployment: Deployment) -> None:
    """IPython without a kernel: nothing takes a widget, so its text stands for it."""
    script = "%load_ext gpulayer\nget_ipython().run_cell_magic('gpulayer', '', '''" + BARS + "''')\n"
    folder = deployment.folder / "terminal"
    folder.mkdir(exist_ok=True)
    (folder / "t.ipy").write_text(script)
    env = deployment.env | {"IPYTHONDIR": str(folder / "ipython"), "GPULAYER_EMBEDDED": "0"}
    command = [sys.executable, "-m", "IPython", "--HistoryManager.enabled=False", "--colors=NoColor", "t.ipy"]
    ended = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "steps" in ended.stdout
    assert "✓ done on alpha" in ended.stderr
    assert "Traceback" not in ended.stdout + ended.stderr
