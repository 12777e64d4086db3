"""GPUlayer: one layer over all the GPUs you can reach, Jupyter first."""

from gpulayer._version import __version__

__all__ = ["__version__"]
