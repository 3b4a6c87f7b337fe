"""Stand-in for SGLang's compiled `sgl_kernel` on a machine without a GPU.

The published wheel holds CUDA binaries and can't be loaded here. On a CPU, SGLang imports the names below and nothing
else: two of them move KV slot numbers in and out of the request table and are written out in torch; the others belong to
speculative decoding, which this stand-in doesn't serve. Test and demo support only, never part of the wheel.

There is no `sgl_kernel.scalar_type`: importing it raises ImportError, upon which SGLang falls back to its own types.
"""

import torch


def _ragged(start_offset: torch.Tensor, end_offset: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (row, column), both int64[n]: row i's columns start_offset[i] .. end_offset[i] - 1, rows one after another."""
    lengths = (end_offset - start_offset).to(torch.int64)
    rows = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    first = torch.cumsum(lengths, 0) - lengths
    columns = torch.arange(len(rows)) - first[rows] + start_offset.to(torch.int64)[rows]
    return rows, columns


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Write new KV slots into the request table: row i gets its share of `out_cache_loc`.

    Args:
        req_pool_indices: int[batch], the table row of each request.
        req_to_token: int32[rows, pool_len], written in place at columns start_offset[i] .. end_offset[i] - 1.
        start_offset: int[batch], first token position written, per request.
        end_offset: int[batch], one past the last position written, per request.
        out_cache_loc: int64[at least sum(end_offset - start_offset)], the slots, request after request.
        pool_len: number of columns of `req_to_token`.
    """
    rows, columns = _ragged(start_offset, end_offset)
    table_rows = req_pool_indices.to(torch.int64)[rows]
    req_to_token[table_rows, columns] = out_cache_loc[: len(rows)].to(req_to_token.dtype)


def assign_extend_cache_locs_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Read KV slots out of the request table, the reverse of `assign_req_to_token_pool_cpu`.

    Args:
        req_pool_indices: int[batch], the table row of each request.
        req_to_token: int32[rows, pool_len], read at columns start_offset[i] .. end_offset[i] - 1.
        start_offset: int[batch], first token position read, per request.
        end_offset: int[batch], one past the last position read, per request.
        out_cache_loc: int64[at least sum(end_offset - start_offset)], its head is written in place, request after request.
        pool_len: number of columns of `req_to_token`.
    """
    rows, columns = _ragged(start_offset, end_offset)
    table_rows = req_pool_indices.to(torch.int64)[rows]
    out_cache_loc[: len(rows)] = req_to_token[table_rows, columns].to(out_cache_loc.dtype)


def _not_served(name: str):
    """Return a function that refuses the call of a speculative decoding kernel."""

    def refuse(*args, **kwargs):
        raise NotImplementedError(
            f"sgl_kernel.{name} belongs to speculative decoding, which the CPU stand-in doesn't serve: "
            "start the server without --speculative-algorithm"
        )

    refuse.__name__ = name
    return refuse


assign_draft_cache_locs_contiguous_cpu = _not_served("assign_draft_cache_locs_contiguous_cpu")
build_tree_kernel_efficient_cpu = _not_served("build_tree_kernel_efficient_cpu")
copy_all_layer_kv_cache_cpu = _not_served("copy_all_layer_kv_cache_cpu")
fill_accept_out_cache_loc_cpu = _not_served("fill_accept_out_cache_loc_cpu")
fill_bonus_tokens_cpu = _not_served("fill_bonus_tokens_cpu")
verify_tree_greedy_cpu = _not_served("verify_tree_greedy_cpu")
