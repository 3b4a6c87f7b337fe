"""A retracted request that is back at its prefill worker under its own rid."""

from typing import Any, Optional


def asked_again(state: Optional[Any], obj: Any) -> bool:
    """Whether the rid of the single request ``obj`` belongs to another request by now.

    A streamed answer is followed, two seconds after its end, by an abort of its rid, for clients that
    went away. A decode worker that retracts a request soon asks for it again under the same rid, and
    the late abort would end that one. ``state`` is what the tokenizer manager holds for the rid.
    """
    return state is not None and obj.is_single and state.obj is not obj
