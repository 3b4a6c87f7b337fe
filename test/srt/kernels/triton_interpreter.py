"""Triton's interpreter in this process, faster and with its bfloat16 put right. Call `use` before Triton is imported.

Triton 3.8.0 keeps bfloat16 as 16-bit patterns: its dot multiplies the patterns, and its cast from float32 cuts off.
Here a dot widens first and a cast rounds to nearest even. Other bfloat16 arithmetic stays wrong; kernels that keep
everything but dot operands in float32 do not meet it.

Its dot is BLAS', which sums a row in another order where the row lies elsewhere in its tile, or the tile has another
size, on some processors (seen on an EPYC without AVX-512, not on a Xeon). A GPU's does not: here a row is summed in order.

And at each call of a device function it searches Triton's modules for what to patch, half of a small kernel's time:
here once a launch.
"""

import os
import sys

import numpy as np


def use() -> None:
    assert "triton" not in sys.modules, "Triton reads TRITON_INTERPRET when it is imported"
    os.environ["TRITON_INTERPRET"] = "1"
    import triton.language as tl
    from triton.runtime import interpreter
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    _patch_once_a_launch(interpreter)
    dot, cast = InterpreterBuilder.create_dot, InterpreterBuilder.cast_impl

    def widened(handle):
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        return TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def create_dot(self, a, b, d, *rest):
        a, b = widened(a), widened(b)
        if 8 in (a.dtype.primitive_bitwidth, b.dtype.primitive_bitwidth):
            return dot(self, a, b, d, *rest)
        left, right = (each.data.astype(d.data.dtype) for each in (a, b))
        # Not along the last axis: there numpy adds in pairs.
        product = (left[..., :, :, None] * right[..., None, :, :]).sum(axis=-2)
        return TensorHandle(product + d.data, d.dtype.scalar)

    def cast_impl(self, source, to):
        if source.dtype.scalar == tl.bfloat16 and to.scalar == tl.float32:
            return widened(source)
        if source.dtype.scalar == tl.float32 and to.scalar == tl.bfloat16:
            return TensorHandle(_bfloat16_bits(source.data), tl.bfloat16)
        return cast(self, source, to)

    InterpreterBuilder.create_dot = create_dot
    InterpreterBuilder.cast_impl = cast_impl
    for name in ("create_fp_ext", "create_fp_trunc"):
        setattr(InterpreterBuilder, name, lambda self, source, to: self.cast_impl(source, to))


def _patch_once_a_launch(interpreter) -> None:
    patch, launch, patched = interpreter._patch_lang, interpreter.GridExecutor.__call__, set()

    def patch_once(function):
        if id(function.__globals__) not in patched:
            patched.add(id(function.__globals__))
            return patch(function)

    def launch_and_forget(self, *args, **kwargs):
        patched.clear()  # a launch takes its patches back at its end
        return launch(self, *args, **kwargs)

    interpreter._patch_lang = patch_once
    interpreter.GridExecutor.__call__ = launch_and_forget


def _bfloat16_bits(data: np.ndarray) -> np.ndarray:
    bits = np.ascontiguousarray(data, np.float32).view(np.uint32)
    rounded = (bits.astype(np.uint64) + 0x7FFF + (bits >> 16 & 1) >> 16).astype(np.uint16)
    return np.where(np.isnan(data), np.uint16(0x7FC0), rounded)
