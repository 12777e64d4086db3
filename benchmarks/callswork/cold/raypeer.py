"""Ray."""

import logging

import ray


@ray.remote
def noop(value: int) -> int:
    """Nothing."""
    return value


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    print(ray.get(noop.remote(1)), flush=True)
    ray.shutdown()
