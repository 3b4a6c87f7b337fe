"""Seamless prefill-to-decode handoff.

A prefill worker (P) keeps decoding while the prompt KV is in flight; the decode
worker (D) relays those tokens, rebuilds their KV by replay and takes over by
seal, drain, commit. ``docs/seamless_handoff.md`` states the protocol.

The protocol core (``log``, ``messages``, ``prefill_machine``, ``decode_machine``)
does no I/O, reads no clock and imports neither SGLang, torch nor zmq.
"""
