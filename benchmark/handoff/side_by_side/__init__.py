"""Unified server, PD, and PD with seamless handoff, asked the same prompts in one run, over a slow KV link.

One job per file: setups (what is run), load (the requests), figures (of one answer and of an arm), verdict (goals),
report (JSON and table), picture, __main__ (the run).
"""
