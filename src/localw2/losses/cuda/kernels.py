"""CUDA kernels compiled at run time by NVRTC, which every CUDA build of torch has: no compiler is needed.

torch's own wrapper (2.9 and later) is private and asks for an installed CUDA toolkit; this needs the two
libraries alone. Whatever goes wrong is a ``KernelError``, for which each caller has a way without the kernel.
"""

from __future__ import annotations

import ctypes
import logging
from contextlib import suppress
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

LOG = logging.getLogger("localw2")


class KernelError(RuntimeError):
    """A kernel could not be compiled, loaded or launched."""


@final
class Kernel:
    """One compiled function, which runs on the current stream and can be captured in a graph."""

    def __init__(self, function: ctypes.c_void_p) -> None:
        self._function = function

    def __call__(self, grid: tuple[int, int], threads: int, shared: int, *arguments: Tensor | int) -> None:
        """Launch the kernel; tensors are passed as pointers, integers as C ints."""
        values = [
            ctypes.c_void_p(a.data_ptr()) if isinstance(a, Tensor) else ctypes.c_int(a) for a in arguments
        ]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        _check(
            _driver().cuLaunchKernel(self._function, *grid, 1, threads, 1, 1, shared, stream, pointers, None),
            "launch",
        )


@cache
def kernel(file: str, name: str, device: torch.device, defines: tuple[str, ...] = ()) -> Kernel:
    """The function ``name`` in a file of this package, compiled for a device; macros as "REAL=float"."""
    if torch.version.cuda is None:
        raise KernelError("this build of torch has no CUDA support")
    source = files("localw2.losses.cuda").joinpath(file).read_text(encoding="utf-8")
    with torch.cuda.device(device):
        major, minor = torch.cuda.get_device_capability()
        binary = _compile(
            source,
            file,
            [f"--gpu-architecture=sm_{major}{minor}", *(f"--define-macro={define}" for define in defines)],
        )
        torch.cuda.current_stream().synchronize()  # makes the device's context current in this thread
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        _check(_driver().cuModuleLoadData(ctypes.byref(module), binary), "load")
        _check(_driver().cuModuleGetFunction(ctypes.byref(function), module, name.encode()), "find")
    return Kernel(function)


@cache
def available(file: str, name: str, device: torch.device, defines: tuple[str, ...] = ()) -> bool:
    """Whether a kernel is available; if not, the reason is logged once."""
    try:
        kernel(file, name, device, defines)
    except (OSError, RuntimeError) as error:
        LOG.warning("%s on %s: the kernel failed, so slower code is used: %s", name, device, error)
        return False
    return True


def _compile(source: str, file: str, options: list[str]) -> bytes:
    library, program = _nvrtc(), ctypes.c_void_p()
    settings = [option.encode() for option in (*options, "--std=c++17")]
    created = library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), file.encode(), 0, None, None)
    if created:
        raise KernelError(f"NVRTC error {created}")
    try:
        failed = library.nvrtcCompileProgram(
            program, len(settings), (ctypes.c_char_p * len(settings))(*settings)
        )
        if failed:
            log = _text(library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog, program)
            raise KernelError(f"{file} does not compile: {log.decode(errors='replace')}")
        return _text(library.nvrtcGetCUBINSize, library.nvrtcGetCUBIN, program)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _text(size: Any, read: Any, program: ctypes.c_void_p) -> bytes:
    length = ctypes.c_size_t()
    if size(program, ctypes.byref(length)):
        raise KernelError("NVRTC returned no result")
    buffer = ctypes.create_string_buffer(length.value)
    if read(program, buffer):
        raise KernelError("NVRTC returned no result")
    return buffer.raw


@cache
def _nvrtc() -> ctypes.CDLL:
    """The NVRTC library of torch's CUDA version, found by the loader or next to torch's own libraries."""
    major = str(torch.version.cuda).partition(".")[0]
    home = Path(torch.__file__).parent
    found = [*home.glob("lib/libnvrtc*.so*"), *home.parent.glob(f"nvidia/*/lib/libnvrtc.so.{major}*")]
    candidates = [f"libnvrtc.so.{major}", f"nvrtc64_{major}0_0.dll"]
    candidates += [str(path) for path in found if "builtins" not in path.name]
    return _load(candidates, f"NVRTC {major} was not found; install it with pip install nvidia-cuda-nvrtc.")


@cache
def _driver() -> ctypes.CDLL:
    return _load(["libcuda.so.1", "nvcuda.dll"], "the CUDA driver library was not found")


def _load(names: list[str], failure: str) -> ctypes.CDLL:
    for name in names:
        with suppress(OSError):
            return ctypes.CDLL(name)
    raise KernelError(failure)


def _check(result: int, doing: str) -> None:
    if result:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(result, ctypes.byref(text))
        raise KernelError(f"CUDA could not {doing} a kernel: {(text.value or b'error').decode()} ({result})")
