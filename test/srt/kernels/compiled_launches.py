"""The launches of a Triton wrapper, compiled for a GPU that is not here: registers, spills, instructions."""

import re
import subprocess
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TYPES = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.float8_e5m2: "*fp8e5",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
OPTIONS = ("num_warps", "num_stages", "enable_fp_fusion")
WARP = 32


@dataclass(frozen=True)
class Launch:
    kernel: triton.JITFunction
    grid: tuple
    args: tuple
    kwargs: dict


@dataclass(frozen=True)
class Compiled:
    """registers: of a thread. spilled: bytes of a thread's stack. shared: bytes of a block.
    mma: tensor core instructions. layouts: how their tiles lie on threads, as the compiler names it, and how other
    tiles do."""

    registers: int
    spilled: int
    shared: int
    mma: frozenset[str]
    mma_layouts: tuple[str, ...]
    other_layouts: tuple[str, ...]


class _Recorder:
    def __init__(self, kernel, into):
        self.kernel, self.into = kernel, into

    def __getitem__(self, grid):
        return lambda *args, **kwargs: self.into.append(Launch(self.kernel, grid, args, kwargs))


@contextmanager
def recorded(module, *names):
    """Within it the named kernels of a module are not launched; what is asked of them is listed."""
    launches, kernels = [], {name: getattr(module, name) for name in names}
    try:
        for name, kernel in kernels.items():
            setattr(module, name, _Recorder(kernel, launches))
        yield launches
    finally:
        for name, kernel in kernels.items():
            setattr(module, name, kernel)


def compile_launch(launch: Launch, arch: int) -> Compiled:
    """Compile for ``sm_<arch>`` what Triton would compile for these arguments at a launch."""
    named = dict(zip(launch.kernel.arg_names, launch.args)) | launch.kwargs
    options = {name: named.pop(name) for name in OPTIONS if name in named}
    signature, constants, attributes = {}, {}, {}
    for index, parameter in enumerate(launch.kernel.params):
        value = named[parameter.name]
        if parameter.is_constexpr or isinstance(value, int) and value == 1:
            signature[parameter.name] = "constexpr"
            constants[(index,)] = value
            continue
        if isinstance(value, torch.Tensor):
            signature[parameter.name] = TYPES[value.dtype]
        else:
            signature[parameter.name] = "fp32" if isinstance(value, float) else "i32"
        if isinstance(value, torch.Tensor) or isinstance(value, int) and value % 16 == 0:
            attributes[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(launch.kernel, signature, constants, attributes)
    compiled = triton.compile(source, target=GPUTarget("cuda", arch, WARP), options=options)
    registers, spilled = _usage(compiled.asm["cubin"])
    return Compiled(
        registers,
        spilled,
        compiled.metadata.shared,
        frozenset(re.findall(r"(?:wgmma|tcgen05|mma)\.(?:mma_async|mma|sync)[\w.]*", compiled.asm["ptx"])),
        tuple(re.findall(r"^#\w+ = (#ttg\.\w*mma.*)$", compiled.asm["ttgir"], re.M)),
        tuple(re.findall(r"^#\w+ = (#ttg\.(?:blocked|linear).*)$", compiled.asm["ttgir"], re.M)),
    )


def _usage(cubin: bytes) -> tuple[int, int]:
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", text)
    return int(found[1]), int(found[2]) + int(found[3])
