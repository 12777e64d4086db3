"""The CUDA driver alone: memory of the first device that is shown is filled, copied there, and read back."""

from __future__ import annotations

import ctypes

from harness import Failed

_BYTES = 16 << 20
_PATTERN = 0x5AC3_17E9
_OUT_OF_MEMORY = 2


def probe(talk, targets, about):
    """Try the one target; libcuda.so.1 missing, or refusing to begin, is told as unusable."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        talk.unusable(f"the CUDA driver's library can't be loaded: {error}")
        return
    talk.build("", about.get("cuda"))
    for target in targets:
        talk.at(f"computing on {target['name']}")
        try:
            _try(cuda, target["index"])
        except Failed as failed:
            talk.say(target=target["name"], why=str(failed), lasting=failed.lasting)
        else:
            talk.say(target=target["name"], why="")


def _try(cuda, index):
    def call(name, *arguments):
        code = getattr(cuda, name)(*arguments)
        if code == _OUT_OF_MEMORY:
            raise Failed("out of memory: what runs there leaves too little for a small computation")
        if code:
            text = ctypes.c_char_p()
            cuda.cuGetErrorString(code, ctypes.byref(text))
            raise Failed(f"{name} failed: {(text.value or b'').decode() or 'error'} ({code})")

    device, context = ctypes.c_int(), ctypes.c_void_p()
    one, other = ctypes.c_uint64(), ctypes.c_uint64()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), index)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    for pointer in (one, other):
        call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(_BYTES))
    call("cuMemsetD32_v2", one, ctypes.c_uint(_PATTERN), ctypes.c_size_t(_BYTES // 4))
    call("cuMemcpyDtoD_v2", other, one, ctypes.c_size_t(_BYTES))
    read = (ctypes.c_uint32 * (_BYTES // 4))()
    call("cuMemcpyDtoH_v2", read, other, ctypes.c_size_t(_BYTES))
    if bytes(read) != _PATTERN.to_bytes(4, "little") * (_BYTES // 4):
        raise Failed("memory that was filled and copied came back wrong")
