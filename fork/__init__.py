"""Builds a patched SGLang from the release on the package index, patches/ and python/sglang.

base        the pinned release: fetch, check, unpack
patch       the format of patches/*.patch: read, write, check
tree        build/tree: one git commit per patch, our files linked in
regenerate  build/tree back to patches/
backend     pip and build: wheel and editable install
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


class ForkError(Exception):
    """Says what is wrong and what to do; shown to the user as it is."""
