"""The steps of `gpu_check`, in the environment that it prepares."""
