"""JupyterLab's page while a cell prints 200 MB, and our messages while another extension holds Jupyter's loop.

Both in a real JupyterLab, the page in Chromium: `make setup` brings them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from typing import Any

import httpx
from websockets.sync.client import connect

from benchmarks.report import Report, Row, median

# the tests' own way to a real JupyterLab: a benchmark runs in a checkout only
from tests.support.deployment import Deployment
from tests.support.lab import CHROMIUM, CHROMIUM_FLAGS, Lab, NotebookPage
from tests.support.processes import until

_LINES = 200_000
_FLOOD = f"""%%gpulayer
line = "x" * 990
for number in range({_LINES}):
    print(f"{{number:08d}} {{line}}")"""
_CLOCK = """%%gpulayer --detach --name clock
import time
while True:
    print(time.time())
    time.sleep(0.01)"""
_STALL_S = 0.5
_STALL = f"""
import time
from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.utils import url_path_join
from tornado import web

class Stall(JupyterHandler):
    @web.authenticated
    async def get(self):
        time.sleep({_STALL_S})
        self.finish("done")

def _jupyter_server_extension_points():
    return [{{"module": "stall_extension"}}]

def _load_jupyter_server_extension(app):
    app.web_app.add_handlers(".*$", [(url_path_join(app.web_app.settings["base_url"], "stall"), Stall)])
"""
_WATCH_TASKS = """() => {
  window.gpulayerTasks = [];
  new PerformanceObserver(list => window.gpulayerTasks.push(...list.getEntries().map(each => each.duration)))
    .observe({ entryTypes: ['longtask'] });
}"""


def main(argv: list[str]) -> int:
    """Exit code 1 when a goal was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks panel", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    options = parser.parse_args(argv)
    report = Report("panel", packages=("jupyterlab", "jupyter_server", "playwright"))
    with Deployment() as deployment:
        extension = deployment.folder / "extension"
        extension.mkdir()
        (extension / "stall_extension.py").write_text(_STALL)
        deployment.env["PYTHONPATH"] = str(extension)
        lab = Lab(deployment)
        try:
            lab.start("--ServerApp.jpserver_extensions", "stall_extension=True")
            until((deployment.data / "endpoint.json").exists, "the control plane")
            deployment.local_worker()
            until(lambda: any(worker.connected for worker in deployment.api.workers()), "the local worker")
            measure(report, lab, repeats=1 if options.quick else 3)
        finally:
            lab.stop()
    return report.finish()


def measure(report: Report, lab: Lab, *, repeats: int) -> None:
    """Add the rows."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_FLAGS)
        try:
            page = browser.new_page(viewport={"width": 1400, "height": 900})
            notebook = NotebookPage(page, lab, lab.notebook("flood", "%load_ext gpulayer", _FLOOD, _CLOCK)).open()
            notebook.run(0)
            notebook.await_end(0)
            floods = [flood(notebook) for _ in range(repeats)]
            notebook.run(2)
            notebook.await_end(2)
        finally:
            browser.close()
    note = (
        f"while a cell printed {_LINES * 1000 / 1e6:.0f} MB in {statistics.median(each['s'] for each in floods):.1f} s"
    )
    longest = [each["longest_ms"] for each in floods]
    report.add(median("panel.longest_task_ms", longest, "ms", note=note, goal="<= 100"))
    report.add(median("panel.heap_growth_mb", [each["heap_mb"] for each in floods], "MB", note=note, goal="<= 100"))
    stalls(report, lab, repeats=4 * repeats)


def flood(notebook: NotebookPage) -> dict[str, float]:
    """One cell that prints 200 MB."""
    page = notebook.page
    before = _heap_bytes(page)
    page.evaluate(_WATCH_TASKS)
    began = time.monotonic()
    notebook.run(1)
    notebook.await_text(1, "done on laptop")
    notebook.await_end(1)
    took_s = time.monotonic() - began
    tasks: list[float] = page.evaluate("() => window.gpulayerTasks")
    heap_mb = (_heap_bytes(page) - before) / 1e6
    return {"s": took_s, "longest_ms": max(tasks, default=0.0), "heap_mb": heap_mb}


def _heap_bytes(page: Any) -> int:
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    return int(session.send("Runtime.getHeapUsage")["usedSize"])


def stalls(report: Report, lab: Lab, *, repeats: int) -> None:
    """How late our messages come through Jupyter's port while a handler sleeps on its loop; beside them its own."""
    [job] = lab.deployment.api.jobs(limit=1)
    delays_s: list[tuple[float, float]] = []  # when it came, how late
    stop = threading.Event()
    url = lab.url(f"gpulayer/v1/jobs/{job.id}/events").replace("http", "ws", 1)
    reader = threading.Thread(target=_read, args=(url, delays_s, stop))
    reader.start()
    ours_ms: list[float] = []
    its_own_ms: list[float] = []
    try:
        until(lambda: len(delays_s) > 100, "the clock's lines")
        for _ in range(repeats):
            time.sleep(0.5)  # a loop that is at rest
            begin = time.time()
            stalled = threading.Thread(target=httpx.get, args=(lab.url("stall"),), kwargs={"trust_env": False})
            stalled.start()
            time.sleep(0.1)
            asked = time.monotonic()
            httpx.get(lab.url("api/status"), trust_env=False, timeout=30)
            its_own_ms.append(1000 * (time.monotonic() - asked))
            stalled.join()
            end = time.time()
            ours_ms.append(1000 * max(late for came, late in list(delays_s) if begin <= came <= end))
    finally:
        stop.set()
        reader.join()
        lab.deployment.api.cancel(job.id)
        until(lambda: lab.deployment.api.job(job.id).terminal, "the clock's end")
    own_ms = statistics.median(its_own_ms)
    note = f"the latest line of a job that prints every 10 ms; Jupyter's own answer {own_ms:.0f} ms"
    report.add(median("panel.host_stall_ms", ours_ms, "ms", note=note, goal="<= 100"))
    report.add(Row(name="panel.jupyter_stall_ms", value=own_ms, unit="ms"))


def _read(url: str, delays_s: list[tuple[float, float]], stop: threading.Event) -> None:
    with connect(url, proxy=None, max_size=None) as socket:
        while not stop.is_set():
            message = json.loads(socket.recv(timeout=30))
            now = time.time()
            for event in message.get("events", ()):
                if event["msg_type"] == "stream":
                    lines = [line for line in event["content"]["text"].splitlines() if line]
                    delays_s += [(now, now - float(line)) for line in lines if _whole(line)]


def _whole(line: str) -> bool:
    """A line may come in two parts: a part of a clock's time is none."""
    return len(line.partition(".")[0]) == 10
