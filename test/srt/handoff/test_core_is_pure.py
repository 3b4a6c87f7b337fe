"""The protocol core does no I/O and imports neither SGLang, torch nor zmq."""

import subprocess
import sys
from pathlib import Path

CORE = Path(__file__).parents[3] / "python/sglang/srt/disaggregation/handoff"
FILES = ("log", "messages", "timing", "cost", "pace", "admission", "prefill_machine", "decode_machine", "verify")
PROBE = """
import importlib, sys, types

# What a machine may not know of: the network, the accelerator, the clock, threads, the disk.
BANNED = {"sglang", "torch", "zmq", "time", "socket", "threading", "asyncio", "random", "secrets", "logging"}

class Ban:
    def find_spec(self, name, path=None, target=None):
        caller = sys._getframe(1)
        while "importlib" in caller.f_code.co_filename:
            caller = caller.f_back
        if name.partition(".")[0] in BANNED and caller.f_code.co_filename.startswith(sys.argv[1]):
            raise ImportError(f"the core imports {name}")

import msgspec, hashlib, array, enum, dataclasses, collections, typing
for name in BANNED & sys.modules.keys():
    del sys.modules[name]
sys.meta_path.insert(0, Ban())
package = types.ModuleType("core")
package.__path__ = [sys.argv[1]]
sys.modules["core"] = package
for name in sys.argv[2:]:
    importlib.import_module("core." + name)
assert not {"sglang", "torch", "zmq"} & sys.modules.keys()
print("pure")
"""


def probe(folder, *files):
    run = [sys.executable, "-c", PROBE, str(folder), *files]
    return subprocess.run(run, capture_output=True, text=True, timeout=60)


def test_the_core_imports_no_world():
    result = probe(CORE, *FILES)
    assert result.stdout == "pure\n", result.stderr


def test_the_probe_would_notice(tmp_path):
    """The probe itself is no blank cheque: a banned import fails it."""
    for number, line in enumerate(("import torch", "from time import monotonic", "import zmq")):
        (tmp_path / f"bad{number}.py").write_text(line + "\n")
        result = probe(tmp_path, f"bad{number}")
        assert result.returncode and "the core imports" in result.stderr, line
