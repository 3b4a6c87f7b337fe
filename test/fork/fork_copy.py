"""A small copy of the repository upon a made-up base wheel, to run the fork tool in."""

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from fork import base

ROOT = Path(__file__).resolve().parents[2]
UPSTREAM = {
    "sglang/__init__.py": "",
    "sglang/_version.py": f"v = '{base.UPSTREAM}'\nt = ({', '.join(base.UPSTREAM.split('.'))})\n",
    "sglang/srt/a.py": "".join(f"a{n} = {n}\n" for n in range(40)),
    "sglang/srt/b.py": "def b():\n    return 'é'\n\n\ndef c():\r\n    return 2\r\n",
}


class Copy:
    """A copy of the repository with its own base, patches and files of ours."""

    def __init__(self, root: Path):
        self.root, self.tree, self.patches = root, root / "build/tree", root / "patches"
        shutil.copytree(ROOT / "fork", root / "fork", ignore=shutil.ignore_patterns("__pycache__"))
        (root / "build/base").mkdir(parents=True)
        self.wheel = root / "build/base" / base.wheel_name()
        self.pin(UPSTREAM)
        self.write("python/sglang/srt/handoff/ours.py", "ours = 1\n")
        self.run("tree")

    def pin(self, files: dict[str, str]) -> None:
        """Make a base wheel of these files and pin it."""
        info = f"{base.NAME}-{base.UPSTREAM}.dist-info"
        files = files | {
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: sglang\nVersion: {base.UPSTREAM}\n",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: "
            + "-".join(self.wheel.stem.split("-")[2:]) + "\n",
            f"{info}/entry_points.txt": "[console_scripts]\nsglang = sglang.cli.main:main\n",
            f"{info}/RECORD": "",
        }  # fmt: skip
        with zipfile.ZipFile(self.wheel, "w") as archive:
            for name, text in files.items():
                archive.writestr(name, text)
        pins = (ROOT / "fork/base.toml").read_text()
        sha = hashlib.sha256(self.wheel.read_bytes()).hexdigest()
        self.write("fork/base.toml", pins.replace(base.PINS["sha256"][self.wheel.name], sha))

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_bytes(text.encode())

    def run(self, *args: str, code: int = 0, **env: str) -> str:
        ran = subprocess.run([sys.executable, "-m", "fork", *args], cwd=self.root,
                             env=os.environ | env, capture_output=True, text=True)  # fmt: skip
        assert ran.returncode == code, ran.stdout + ran.stderr
        return ran.stdout + ran.stderr

    def build(self, hook: str) -> Path:
        (self.root / "out").mkdir(exist_ok=True)
        code = f"from fork.backend import *; print({hook}('out'))"
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=self.root,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self.root / "out" / done.stdout.strip()

    def git(self, *args: str) -> str:
        done = subprocess.run(
            ["git", *args], cwd=self.tree, check=True, stdout=subprocess.PIPE, text=True
        )
        return done.stdout

    def insert(self, line: int, text: str, file: str = "a") -> None:
        """Insert a line after that line (from 1) of a.py or b.py in the tree."""
        path = self.tree / f"sglang/srt/{file}.py"
        lines = path.read_bytes().decode().splitlines(keepends=True)
        path.write_bytes("".join(lines[:line] + [text + "\n"] + lines[line:]).encode())

    def new(self, name: str) -> None:
        self.run("patches", "--new", name, "-m", f"Add {name}", "-m", "It is needed.")

    def snapshot(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in sorted(self.patches.glob("*"))}
