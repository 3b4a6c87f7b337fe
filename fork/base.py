"""The pinned SGLang release: fetch its wheel, check it, unpack it."""

import hashlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path

from fork import ROOT, ForkError

PINS = tomllib.loads((ROOT / "fork/base.toml").read_text())
NAME, UPSTREAM = PINS["name"], PINS["version"]
RELEASE = f"{NAME} {UPSTREAM}"
LOCAL = f"handoff.{PINS['number']}"
VERSION = f"{UPSTREAM}+{LOCAL}"
CACHE = ROOT / "build/base"


def wheel_name() -> str:
    """File name of the pinned wheel for this Python and machine.

    Raises ForkError when none is pinned.
    """
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    tag, machine = f"-{python}-{python}-", f"_{platform.machine()}.whl"
    for name in PINS["sha256"]:
        if sys.platform == "linux" and tag in name and name.endswith(machine):
            return name
    raise ForkError(
        f"{RELEASE} has no wheel for Python {sys.version_info.major}.{sys.version_info.minor} on "
        f"{sys.platform} {platform.machine()}. fork/base.toml pins: {', '.join(PINS['sha256'])}. "
        "Run with a Python and machine of that list."
    )


def fetch() -> Path:
    """Path of the checked base wheel under build/base, downloaded by pip if it isn't there.

    Raises ForkError when pip can't get it or its sha256 isn't the pinned one.
    """
    name = wheel_name()
    cached = CACHE / name
    if not cached.exists():
        _download(UPSTREAM, cached, verify=check)
    check(cached)
    return cached


def fetch_other(version: str) -> Path:
    """Path of the wheel of any release under build/base. Its sha256 is not known here, so it is
    read and compared with, never installed or built upon.

    Raises ForkError when pip can't get it.
    """
    if not re.fullmatch(r"[0-9][0-9A-Za-z.]*", version):
        raise ForkError(f"{version!r} is no version of {NAME}: say one like {UPSTREAM}.")
    cached = CACHE / wheel_name().replace(f"-{UPSTREAM}-", f"-{version}-")
    if version == UPSTREAM:
        return fetch()
    if not cached.exists():
        _download(version, cached)
    return cached


def _download(version: str, wheel: Path, verify=lambda wheel: None) -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as tmp:
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
        pip += ["--disable-pip-version-check", "--dest", tmp, f"{NAME}=={version}"]
        ran = subprocess.run(pip, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if ran.returncode or not (Path(tmp) / wheel.name).exists():
            raise ForkError(
                f"pip didn't get {wheel.name}:\n{ran.stdout.strip()}\n"
                f"Check the network and pip's index, or put that file into {CACHE}."
            )
        verify(Path(tmp) / wheel.name)
        (Path(tmp) / wheel.name).replace(wheel)


def check(wheel: Path) -> None:
    """Raises ForkError when the wheel's sha256 isn't the one pinned for its name."""
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != PINS["sha256"][wheel.name]:
        raise ForkError(
            f"{wheel.name} isn't the pinned release: sha256 is {found}, fork/base.toml says "
            f"{PINS['sha256'][wheel.name]}. Delete {wheel} and run again; if it stays so, the "
            "index offers another file under that name: don't use it."
        )


def unpack(wheel: Path, folder: Path) -> None:
    """Unpack the wheel as it is; executable files stay executable."""
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            path = Path(archive.extract(entry, folder))
            if path.is_file():
                path.chmod(0o755 if entry.external_attr >> 16 & 0o100 else 0o644)


def set_version(folder: Path) -> None:
    """Give an unpacked base the fork's version and drop its RECORD, which no longer holds.

    Raises ForkError when the base doesn't keep its version where it is looked for.
    """
    info = folder / f"{NAME}-{UPSTREAM}.dist-info"
    numbers = ", ".join(UPSTREAM.split("."))
    _replace(info / "METADATA", f"\nVersion: {UPSTREAM}\n", f"\nVersion: {VERSION}\n")
    _replace(folder / NAME / "_version.py", f"= '{UPSTREAM}'", f"= '{VERSION}'")
    _replace(folder / NAME / "_version.py", f"= ({numbers})", f"= ({numbers}, '{LOCAL}')")
    (info / "RECORD").unlink()
    shutil.move(info, folder / f"{NAME}-{VERSION}.dist-info")


def _replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    if text.count(old) != 1:
        raise ForkError(
            f"{path.name} of {RELEASE} doesn't hold {old.strip()!r} exactly once, so the fork's "
            "version can't be set: adapt set_version() in fork/base.py to this release."
        )
    path.write_text(text.replace(old, new))
