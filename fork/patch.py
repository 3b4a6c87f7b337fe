"""The format of patches/*.patch.

    Subject

    Why, in a paragraph or more.

    Base: sglang 0.5.23
    Pristine-sha256: <64 hex digits> python/sglang/<file>     (one line per file)

    diff --git a/python/sglang/<file> b/python/sglang/<file>
    index <blob before> <blob after>
    @@ -12,0 +13,2 @@
    +only insertions, no context, nothing after the second @@

so that no line of SGLang is in this repository. With no context, a hunk's place is its line
number: it is right only for the very file that it was made for, hence the two hashes. The
sha256 names the file of the release; `index` names the file after the earlier patches.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from fork import ForkError

FILE = re.compile(
    r"diff --git a/(?P<path>python/sglang/.+) b/(?P=path)\n"
    r"index (?P<before>[0-9a-f]{40})\.\.[0-9a-f]{40} \d+\n"
    r"--- a/(?P=path)\n\+\+\+ b/(?P=path)\n"
)
HUNK = re.compile(r"(@@ -(\d+)(?:,(\d+))? \+\d+(?:,(\d+))? @@).*\n")
HEADER = re.compile(
    r"(?P<message>.+?)\n\nBase: (?P<release>.+?)\n"
    r"(?P<hashes>(?:Pristine-sha256: [0-9a-f]{64} .+?\n)+)\n(?=diff --git )",
    re.DOTALL,
)


@dataclass(frozen=True)
class Patch:
    """One patch. `name` is its file name less number and suffix; `message` is subject, empty
    line, why; `release` is like "sglang 0.5.23"; `pristine` maps each upstream path to the sha256
    of the file in that release; `diff` is the checked git diff."""

    name: str
    message: str
    release: str
    pristine: dict[str, str]
    diff: str

    def text(self) -> str:
        """The patch file's content; read_patch() gives the same Patch back."""
        hashes = "".join(f"Pristine-sha256: {sha} {path}\n" for path, sha in self.pristine.items())
        return f"{self.message}\n\nBase: {self.release}\n{hashes}\n{self.diff}"


def blobs(diff: str) -> dict[str, str]:
    """Maps each path in the diff to the git blob of the file that it is to be applied to."""
    return {file["path"]: file["before"] for file in FILE.finditer(diff)}


def hunks(diff: str) -> dict[str, list[tuple[int, list[str]]]]:
    """Maps each path in the diff to its hunks: the number of the line, in the file that the diff
    is to be applied to, after which the lines are inserted (0: before the first), and the lines,
    each with its newline."""
    found, at = {}, 0
    while at < len(diff):
        file = FILE.match(diff, at)
        here = found[file["path"]] = []
        at = file.end()
        while hunk := HUNK.match(diff, at):
            lines = diff[hunk.end() :].split("\n", count := int(hunk[4] or 1))[:count]
            here.append((int(hunk[2]), [line[1:] + "\n" for line in lines]))
            at = hunk.end() + sum(len(line) + 1 for line in lines)
    return found


def check_message(name: str, message: str) -> None:
    """Raises ForkError when the message isn't subject, empty line, why."""
    subject, gap, why = message.partition("\n\n")
    if not subject or "\n" in subject or not why.strip():
        raise ForkError(
            f"patch {name}: its message must be a subject line, an empty line and a paragraph "
            "that says why. Reword its commit in build/tree, then run `python -m fork patches`."
        )


def read_patch(path: Path) -> Patch:
    """The patch in a file NNNN-name.patch.

    Raises ForkError when it isn't of the format above.
    """
    text = path.read_bytes().decode()
    name = re.fullmatch(r"\d{4}-(.+)\.patch", path.name)
    header = HEADER.match(text)
    if not name or not header:
        raise ForkError(
            f"{path}: not a patch NNNN-name.patch with message, Base, Pristine-sha256 and diff. "
            "Patches are written by `python -m fork patches` from commits in build/tree."
        )
    check_message(name[1], header["message"])
    diff = text[header.end() :]
    if insertions(name[1], diff) != diff:
        raise ForkError(
            f"{path}: there is text after the second @@ of a hunk header; it quotes SGLang. "
            "Run `python -m fork tree` and `python -m fork patches`, which leave it out."
        )
    hashes = [line.split(" ", 2)[1:] for line in header["hashes"].splitlines()]
    patch = Patch(
        name[1], header["message"], header["release"], {file: sha for sha, file in hashes}, diff
    )
    if list(patch.pristine) != list(blobs(diff)):
        raise ForkError(f"{path}: the files of its Pristine-sha256 lines aren't those of its diff.")
    return patch


def insertions(name: str, diff: str) -> str:
    """The git diff less the text after each second @@.

    Raises ForkError, naming file and line, for anything but insertions without context into
    files that exist.
    """
    kept, at = [], 0
    while at < len(diff):
        file = FILE.match(diff, at)
        if not file:
            raise ForkError(
                f"patch {name}: {diff[at:].splitlines()[0]!r} isn't the start of an edit of an "
                "SGLang file. Patches don't add, remove or rename files, change their mode or the "
                "newline at their end: new files go to python/sglang/."
            )
        kept.append(file[0])
        at = file.end()
        while hunk := HUNK.match(diff, at):
            kept.append(hunk[1] + "\n")
            at = hunk.end()
            lines = diff[at:].split("\n", count := int(hunk[4] or 1))[:count]
            if hunk[3] != "0" or not all(line.startswith("+") for line in lines):
                raise ForkError(
                    f"patch {name}: {file['path']} line {hunk[2]}: a line is deleted, changed or "
                    "context (counted without this patch). Patches only insert, with no context: "
                    "restore the line and insert beside it; to change a line of another patch, use "
                    "`--into` that patch."
                )
            kept += [line + "\n" for line in lines]
            at += sum(len(line) + 1 for line in lines)
    return "".join(kept)
