"""The table that the demo prints."""

from collections.abc import Sequence

COLUMNS = {
    "arm": "",
    "ttft_ms": "TTFT",
    "largest_gap_ms": "largest gap",
    "switch_gap_ms": "gap at switch",
    "median_itl_ms": "median ITL",
    "end_to_end_ms": "end to end",
    "tokens_bridged": "tokens bridged",
    "equal_output": "equal output",
}
NOTE = "In milliseconds. Medians over the requests; of the largest gap the largest."


def _cell(name: str, value: str | float | bool | None) -> str:
    if name == "equal_output":
        # None: the arm that the others are compared with
        return {None: "reference", True: "yes", False: "NO"}[value]
    if isinstance(value, str):
        return value
    return "-" if value is None else f"{value:,.0f}"


def table(arms: Sequence[dict]) -> str:
    """Return the table, one row per entry of the report's `arms`."""
    lines = [list(COLUMNS.values()), *([_cell(name, arm[name]) for name in COLUMNS] for arm in arms)]
    widths = [max(map(len, column)) for column in zip(*lines)]
    head, *rows = ("  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in lines)
    return "\n".join([head, "-" * len(head), *rows, NOTE])
