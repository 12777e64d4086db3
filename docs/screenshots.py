"""Makes the pictures of `docs/`: `python -m docs.screenshots` from a checkout after `make setup`.

A real JupyterLab, a local worker and one that joins, a notebook that runs: no drawing.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from tests.support.deployment import Deployment
from tests.support.lab import CHROMIUM, CHROMIUM_FLAGS, Lab, NotebookPage
from tests.support.processes import until

OUT = Path(__file__).resolve().parent
TRAIN = """
import time

def main(epochs):
    for epoch in range(1, epochs + 1):
        time.sleep(0.15)
        print(f"epoch {epoch}/{epochs}  loss {2.5 / epoch:.3f}", flush=True)
"""
CELLS = (
    "%load_ext gpulayer",
    "%%gpulayer --session train --name training\nimport train\n\ntrain.main(epochs=60)",
    "%%gpulayer --session train\nrates = {'slow': 0.01}\n\nrates['fast']",
    "%%gpulayer --accelerator cuda\nimport torch",
)
THEMES = {"": "JupyterLab Light", "-dark": "JupyterLab Dark"}


def main() -> int:
    """Write the pictures."""
    with Deployment() as deployment, sync_playwright() as playwright:
        lab = Lab(deployment)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_FLAGS)
        try:
            lab.start()
            until((deployment.data / "endpoint.json").exists, "the control plane")
            deployment.local_worker()
            deployment.worker("gpu-box-1", slots=8)
            until(lambda: sum(worker.connected for worker in deployment.api.workers()) == 2, "both workers")
            for suffix, theme in THEMES.items():
                take(browser, lab, suffix, theme)
        finally:
            browser.close()
            lab.stop()
    return 0


def take(browser: Any, lab: Lab, suffix: str, theme: str) -> None:
    """The pictures of one theme."""
    page = browser.new_page(viewport={"width": 1200, "height": 720})
    notebook = NotebookPage(page, lab, lab.notebook(f"training{suffix}", *CELLS, train=TRAIN)).open()
    page.evaluate("theme => window.jupyterapp.commands.execute('apputils:change-theme', { theme })", theme)
    notebook.command("gpulayer:open-panel")
    page.locator('#gpulayer-panel [data-worker="gpu-box-1"] .gpulayer-Machine-head').click()
    notebook.run(0)
    notebook.await_end(0)
    notebook.run(1)
    notebook.await_text(1, "epoch 12/60")
    page.screenshot(path=OUT / f"lab-running{suffix}.png")
    page.locator("#gpulayer-panel").screenshot(path=OUT / f"lab-panel{suffix}.png")
    notebook.await_end(1)
    notebook.command("notebook:clear-all-cell-outputs")
    for number in (2, 3):
        notebook.run(number)
        notebook.await_end(number)
    page.locator("#gpulayer-panel").get_by_text("why?").first.click()
    page.screenshot(path=OUT / f"lab-error{suffix}.png")
    lab.deployment.api.release("train")
    until(lambda: not lab.deployment.api.sessions(), "the session's end")
    page.close()


if __name__ == "__main__":
    sys.exit(main())
