"""The sgl_kernel stand-in: the two real functions against a plain loop, the others refuse."""

import importlib

import pytest
import torch

from rig.servers import STAND_IN

BATCHES = [
    # table rows, start, end of each request
    ([2], [0], [5]),
    ([3, 0, 1], [4, 0, 2], [9, 3, 2]),  # the last one writes nothing
    ([1, 2], [0, 0], [0, 0]),
]


@pytest.fixture
def kernel(monkeypatch):
    monkeypatch.syspath_prepend(str(STAND_IN))
    return importlib.import_module("sgl_kernel")


def _case(rows, start, end):
    table = torch.arange(4 * 10, dtype=torch.int32).reshape(4, 10)
    slots = torch.arange(1000, 1000 + sum(end) - sum(start), dtype=torch.int64)
    return table, [torch.tensor(x, dtype=torch.int64) for x in (rows, start, end)], slots


@pytest.mark.parametrize("rows, start, end", BATCHES)
def test_assign_req_to_token_pool_writes_each_share(kernel, rows, start, end):
    table, (row_t, start_t, end_t), slots = _case(rows, start, end)
    expected, rest = table.clone(), iter(slots.tolist())
    for row, first, last in zip(rows, start, end):
        for column in range(first, last):
            expected[row, column] = next(rest)
    kernel.assign_req_to_token_pool_cpu(row_t, table, start_t, end_t, slots, table.shape[1])
    assert torch.equal(table, expected)


@pytest.mark.parametrize("rows, start, end", BATCHES)
def test_assign_extend_cache_locs_reads_each_share(kernel, rows, start, end):
    table, (row_t, start_t, end_t), slots = _case(rows, start, end)
    expected = [table[row, column].item() for row, first, last in zip(rows, start, end) for column in range(first, last)]
    # longer than needed: what's behind stays
    out = torch.cat([torch.zeros_like(slots), torch.tensor([-1])])
    kernel.assign_extend_cache_locs_cpu(row_t, table, start_t, end_t, out, table.shape[1])
    assert out.tolist() == expected + [-1]


def test_speculative_functions_refuse_by_name(kernel):
    refused = [name for name in dir(kernel) if name.endswith("_cpu") and not name.startswith("assign_req") and "extend" not in name]
    assert len(refused) == 6
    for name in refused:
        with pytest.raises(NotImplementedError, match=name):
            getattr(kernel, name)()


def test_scalar_type_is_absent(kernel):
    with pytest.raises(ImportError):
        importlib.import_module("sgl_kernel.scalar_type")
