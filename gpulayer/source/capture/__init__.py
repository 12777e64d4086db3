"""Functions and classes on their way to another machine: as source, never as bytecode.

What a module of the project defines travels as the project's folder and is imported by its name there. What a notebook
or a script defines travels as generated source, with the names that it needs: `capture` looks at them anew at each
call, so that whatever was defined again since takes effect.

`capture` gives a `Captured`; its `spec()` and its `data` are what the worker's `load` makes the object of again.
"""

from __future__ import annotations

from gpulayer.source.capture.capturing import capture
from gpulayer.source.capture.records import Captured, CaptureError, Piece

__all__ = ["CaptureError", "Captured", "Piece", "capture"]
