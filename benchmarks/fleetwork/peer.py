"""The peer: Ray runs the same programs by `subprocess`. A program of its own, since Ray may live elsewhere.

`python peer.py SLOTS` prints 'ready', then answers each line 'COUNT FOLDER PROGRAM...' with the seconds that it took.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import time


def main(slots: int) -> None:
    """Serve requests until the input ends."""
    import ray

    ray.init(num_cpus=slots, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)

    @ray.remote(num_cpus=1)
    def run(argv: list[str], name: str) -> int:
        with open(f"{name}.out", "ab") as out, open(f"{name}.err", "ab") as err:
            return subprocess.run(argv, stdout=out, stderr=err, start_new_session=True, check=False).returncode

    with tempfile.TemporaryDirectory() as folder:  # its workers are started before anything is timed
        ray.get([run.remote(["true"], f"{folder}/{n}") for n in range(2 * slots)])
    print("ready", ray.__version__, flush=True)
    for line in sys.stdin:
        count, folder, *argv = line.split()
        os.makedirs(folder)
        began = time.perf_counter()
        codes = ray.get([run.remote(argv, f"{folder}/{n}") for n in range(int(count))])
        print(time.perf_counter() - began if not any(codes) else "failed", flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]))
