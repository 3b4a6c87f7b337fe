"""Build backend (PEP 517, PEP 660): the base wheel plus patches/ plus python/sglang."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from fork import ForkError, base, tree
from fork.git import git
from fork.repo import check_shadowing, commit_patches, make_repo

DIST_INFO = f"{base.NAME}-{base.VERSION}.dist-info"


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None) -> str:
    """Make the wheel from patches/ and python/; build/tree isn't used. Returns its file name."""
    with tempfile.TemporaryDirectory() as tmp:
        folder = Path(tmp)
        make_repo(folder, base.fetch())
        ours = tree.our_files()
        check_shadowing(folder, ours)
        git(folder, "reset", "--quiet", "--hard", commit_patches(folder, tree.read_patches()))
        shutil.rmtree(folder / ".git")
        for name, source in ours.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, folder / name)
        return _pack(folder, wheel_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None) -> str:
    """Make build/tree, and a wheel that puts it on the import path. Returns its file name."""
    tree.update()
    with tempfile.TemporaryDirectory() as tmp:
        shutil.copytree(tree.TREE / DIST_INFO, Path(tmp, DIST_INFO))
        Path(tmp, "sglang-handoff.pth").write_text(f"{tree.TREE}\n")
        return _pack(Path(tmp), wheel_directory)


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None) -> str:
    """Write the wheel's dist-info without building it. Returns its folder name."""
    with tempfile.TemporaryDirectory() as tmp:
        base.unpack(base.fetch(), Path(tmp))
        base.set_version(Path(tmp))
        shutil.copytree(Path(tmp, DIST_INFO), Path(metadata_directory, DIST_INFO))
    return DIST_INFO


prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel


def build_sdist(sdist_directory, config_settings=None) -> str:
    """Raises ForkError: there is no source archive."""
    raise ForkError(
        "This fork makes no source archive: it is a checkout's patches upon a wheel of the package "
        "index. Build the wheel alone: `python -m build --wheel` or `pip wheel . --no-deps`."
    )


def _pack(folder: Path, wheel_directory: str) -> str:
    """Pack an unpacked wheel; same files, same bytes, whatever the clock and the umask."""
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
    env = {"SOURCE_DATE_EPOCH": "946684800"} | os.environ  # 2000-01-01
    pack = [sys.executable, "-m", "wheel", "pack", str(folder), "--dest-dir", str(wheel_directory)]
    ran = subprocess.run(pack, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if ran.returncode:
        raise ForkError(f"`wheel pack` failed (is the package `wheel` installed?):\n{ran.stdout}")
    (made,) = Path(wheel_directory).glob(f"{base.NAME}-{base.VERSION}-*.whl")
    return made.name
