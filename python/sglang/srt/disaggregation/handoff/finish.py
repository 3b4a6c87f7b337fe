"""P's own reading of a request's end, without touching the request.

D decides: it applies every stop rule to every token it relays. P only saves itself
steps that D would throw away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from .messages import EndReason

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req


def generation_end(
    req: Req, token: int, length: int, max_new_tokens: int
) -> Optional[EndReason]:
    """Why generation ends with ``token`` as output entry ``length``, or None.

    Stop strings and patterns are not looked at: they need the text.
    """
    if _is_end_token(req, token):
        return EndReason.TOKEN
    if length >= max_new_tokens:
        return EndReason.LENGTH
    return None


def _is_end_token(req: Req, token: int) -> bool:
    params = req.sampling_params
    if params.ignore_eos:
        return False
    tokenizer = req.tokenizer
    ids = [params.stop_token_ids, req.eos_token_ids]
    if tokenizer is not None:
        if token == tokenizer.eos_token_id:
            return True
        ids.append(tokenizer.additional_stop_token_ids)
    return any(token in group for group in ids if group)
