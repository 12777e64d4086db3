"""ipyparallel."""

import logging

import ipyparallel


def noop(value: int) -> int:
    """Nothing."""
    return value


if __name__ == "__main__":
    cluster = ipyparallel.Cluster(n=2, engines="local", log_level=logging.ERROR)
    client = cluster.start_and_connect_sync(activate=False)
    print(client.load_balanced_view().apply_sync(noop, 1), flush=True)
    client.close()
    cluster.stop_cluster_sync()
