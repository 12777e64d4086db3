"""The commands of GPUlayer, run for real in a data folder of their own: what a person types, and what comes.

`python examples/demo.py`, from anywhere. Nothing of it is left when it ends, and it touches no control plane of yours.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gpulayer import Client
from gpulayer.client.embedded import lives
from gpulayer.protocol.endpoint import read_endpoint

ROOT = Path(__file__).resolve().parent.parent
GPULAYER = [sys.executable, "-m", "gpulayer.cli"]


class Demo:
    """Types commands, and shows what they print."""

    def __init__(self, folder: Path):
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("GPULAYER_")}
        self.env |= {"GPULAYER_DATA": str(folder / "data"), "NO_COLOR": "1"}
        self.folder = folder

    def type(self, line: str, *, code: int = 0) -> None:
        """Run a line. Raises SystemExit where its exit code is another one."""
        self._run(line, code, None)

    def id_of(self, line: str) -> str:
        """Run a line that prints a job's id."""
        text = self._run(line, 0, subprocess.PIPE)
        print(text, end="", flush=True)
        return text.strip()

    def _run(self, line: str, code: int, stdout: int | None) -> str:
        print(f"\n$ gpulayer {line}", flush=True)
        words = [*GPULAYER, *shlex.split(line)]
        done = subprocess.run(
            words, cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL, stdout=stdout, stderr=sys.stdout, text=True
        )
        if done.returncode != code:
            sys.exit(f"demo: gpulayer {line} ended with {done.returncode}, {code} was expected")
        return done.stdout or ""

    def end(self) -> None:
        """End the control plane that the first command started, and its worker."""
        endpoint = read_endpoint(self.folder / "data")
        keeper = self.folder / "data" / "worker" / "keeper.json"
        pids = [endpoint.pid] if endpoint is not None else []
        if keeper.exists():
            pids.insert(0, json.loads(keeper.read_bytes())["pid"])
        for pid in pids:
            if lives(pid):
                os.kill(pid, signal.SIGTERM)
        for pid in pids:
            while lives(pid):
                time.sleep(0.05)


def main() -> int:
    """The walk."""
    folder = Path(tempfile.mkdtemp(prefix="gpulayer-demo-"))
    shutil.copytree(ROOT / "examples" / "shell_job", folder / "examples" / "shell_job")
    demo = Demo(folder)
    try:
        print("Any program, with its folder: its output comes as it is written, the files it made come back.")
        demo.type(
            "submit --source examples/shell_job --input examples/shell_job/sales.csv:sales.csv --output report.txt "
            "-- bash report.sh"
        )
        print("\n" + (folder / "examples/shell_job/report.txt").read_text(), end="")

        print("\nAn exit code is the program's own.")
        demo.type("submit -- sh -c 'exit 7'", code=7)

        print("\nDetached, looked at later; one that runs after another; an array.")
        job = demo.id_of("submit --detach --name sleeper -- sh -c 'echo working; sleep 1; echo made > made.txt'")
        after = demo.id_of(f"submit --detach --after {job} --name next -- echo 'it has succeeded'")
        demo.type(f"job wait {job} {after}")
        demo.type(f"job logs {after}")
        sweep = demo.id_of("submit --array 0-3,7 --output out.txt -d --shell 'echo $GPULAYER_ARRAY_INDEX > out.txt'")
        demo.type(f"job wait {sweep}")
        demo.type(f"job download {sweep} --to out")
        demo.type("job list")
        demo.type(f"job show {job}")

        print("\nWhat can't be is one line.")
        demo.type("submit --source no-such-folder -- true", code=1)
        demo.type("submit --accelerator cuda --worker nobody -- true", code=69)
        demo.type("resources list")

        print("\nThe same from Python.")
        with Client(data=folder / "data") as client:
            made = client.submit("echo from Python", source=folder / "examples" / "shell_job")
            for name, data in client.stream(made):
                print(name, data.decode(), end="")
            print(f"exit code {made.result().exit_code}")
    finally:
        demo.end()
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
