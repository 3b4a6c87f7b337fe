"""`make demo`: the same chat prompts to a unified server, to PD, and to PD with seamless handoff, over a slow KV link.

One job per file: prompts, arms (the servers), measure (figures), facts (what the workers did meanwhile), verdict, table,
timeline (the picture), report (the JSON), __main__ (the run).
"""
