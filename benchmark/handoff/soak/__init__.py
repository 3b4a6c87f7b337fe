"""Soak: thousands of requests with random faults on real workers, each answer compared with the unified server's.

One job per file: plan (what is sent and what is done to it), faults (the hand that does it), run (rounds on a real
pair), judge (lost, doubled, different), memory (flat or not), report.
"""
