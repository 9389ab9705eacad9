# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Where Triton kernels run, and how they are launched.

Triton comes with torch's CUDA builds. Without it, and on other devices, every operation here runs
its plain-torch reference, which stands in the same file as its kernel.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

import torch
from torch._subclasses.fake_tensor import FakeTensor

F = TypeVar("F", bound=Callable[..., Any])

try:
    import triton
    import triton.language as tl
    from triton.tools.tensor_descriptor import TensorDescriptor

    HAS_TRITON = True
    jit = triton.jit
except ImportError:
    HAS_TRITON = False
    tl = TensorDescriptor = None

    def jit(function: F) -> F:
        """Leaves a kernel as it is: nothing launches it."""
        return function


HALF = (torch.float16, torch.bfloat16)

_assumed_device: ContextVar[torch.device | None] = ContextVar("assumed_device", default=None)
_kernels_off: ContextVar[bool] = ContextVar("kernels_off", default=False)


@contextlib.contextmanager
def running_as_on(device: torch.device) -> Iterator[None]:
    """Makes every choice here as for another device: to plan a capture where there is none.

    Args:
        device: The device that is asked about, for this thread and inside the ``with`` only.
    """
    token = _assumed_device.set(device)
    try:
        yield
    finally:
        _assumed_device.reset(token)


def device_type(device: torch.device) -> str:
    """Type of the device that is planned for, or of the given one."""
    return (_assumed_device.get() or device).type


@contextlib.contextmanager
def references_only() -> Iterator[None]:
    """Leaves the kernels aside: every operation of this thread runs its reference."""
    token = _kernels_off.set(True)
    try:
        yield
    finally:
        _kernels_off.reset(token)


def has_kernels(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether kernels serve activations of a dtype on a device."""
    usable = HAS_TRITON and not _kernels_off.get()
    return usable and dtype in HALF and device_type(device) == "cuda"


_compiled: dict[tuple[Any, ...], tuple[Any, tuple[Any, ...]]] = {}


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    """Runs a kernel; on fake tensors nothing, as it allocates nothing.

    Triton binds arguments and looks its binary up at every launch, which takes the host several
    times what the launch itself does. So the binary is kept for arguments it was compiled for.

    Args:
        kernel: Made by ``jit``.
        grid: Programs along each axis.
        args: Of the kernel, tensors first: all but its constants.
        options: Its constants, which come last among its parameters, ``num_warps`` and
            ``num_stages``.
    """
    first = args[0]
    if isinstance(first, FakeTensor):
        return
    key = (id(kernel), first.get_device(), *map(_kind, args), *options.values())
    found = _compiled.get(key)
    if found is not None:
        (compiled, constants), whole_grid = found, (*grid, 1, 1)
        compiled[whole_grid](*args, *constants)
        return
    compiled = kernel[grid](*args, **options)
    if compiled is not None:  # Triton's interpreter has no binary
        constants = tuple(options[name] for name in kernel.arg_names[len(args) :])
        _compiled[key] = (compiled, constants)


def _kind(arg: Any) -> Any:
    """What a binary depends on: types, whether 16 divides a number or address, ones, wide numbers.

    Triton looks at nothing else of an argument. No tuple where there need not be one: thousands of
    launches are recorded at a start.
    """
    if isinstance(arg, torch.Tensor):
        return arg.dtype if arg.data_ptr() % 16 == 0 else (arg.dtype,)
    if isinstance(arg, int):
        if -(1 << 31) <= arg < 1 << 31:
            return 1 if arg == 1 else 16 if arg % 16 == 0 else 0
        return "wide", arg % 16 == 0
    if isinstance(arg, float):
        return float
    return (arg.base.dtype, *arg.block_shape)  # a TensorDescriptor


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << (n - 1).bit_length()
