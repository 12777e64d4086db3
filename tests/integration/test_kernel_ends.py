"""A front end that restarts or ends the notebook's kernel interrupts it first: that is no Stop."""

from __future__ import annotations

from gpulayer.protocol.types import State
from tests.support.deployment import Deployment
from tests.support.notebook import Notebook
from tests.support.processes import until

ENDLESS = "%%gpulayer\nimport time\nprint('begun', flush=True)\nwhile True:\n    time.sleep(0.02)"


def test_the_job_of_a_kernel_that_is_restarted_goes_on(deployment: Deployment, notebook: Notebook) -> None:
    cell = notebook.start(ENDLESS)
    cell.until_text("begun")
    notebook.shut_down()
    [job] = deployment.api.jobs(limit=1)
    assert (job.state, job.cancelling) == (State.RUNNING, False)
    notebook.start_kernel()
    notebook.run("%load_ext gpulayer")
    attached = notebook.start(f"%gpulayer attach {job.id}")
    attached.until_text("begun")
    deployment.api.cancel(job.id)
    until(lambda: deployment.api.job(job.id).state is State.CANCELLED, "the job's end")
    assert not attached.wait().ok


def test_an_interrupt_alone_is_a_stop(deployment: Deployment, notebook: Notebook) -> None:
    cell = notebook.start(ENDLESS)
    cell.until_text("begun")
    notebook.interrupt()
    assert "KeyboardInterrupt" in cell.wait().traceback
    assert deployment.api.jobs(limit=1)[0].state is State.CANCELLED
