"""Builds a patched SGLang from the release on the package index, patches/ and python/sglang.

base        the pinned release: fetch, check, unpack
patch       the format of patches/*.patch: read, write, check
tree        build/tree: one git commit per patch, our files linked in
regenerate  build/tree back to patches/
carry       patches to another state of SGLang, by three-way merges
rebase      tries them on another release
checkout    a git checkout of SGLang, and a new branch in it
placement   which of our files go upstream
pr          the branch for a pull request
backend     pip and build: wheel and editable install
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


class ForkError(Exception):
    """Says what is wrong and what to do; shown to the user as it is."""
