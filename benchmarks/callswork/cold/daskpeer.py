"""dask.distributed."""

import logging

import distributed


def noop(value: int) -> int:
    """Nothing."""
    return value


if __name__ == "__main__":
    slots = {"n_workers": 2, "threads_per_worker": 1, "processes": True}
    with (
        distributed.LocalCluster(**slots, dashboard_address=None, silence_logs=logging.ERROR) as cluster,
        distributed.Client(cluster) as client,
    ):
        print(client.submit(noop, 1).result(), flush=True)
