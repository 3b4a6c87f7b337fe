"""Deterministic discrete-event simulation of the handoff, on virtual time.

The product's own machines and session tables run here; schedulers, network and costs are models
with parameters. ``python -m benchmark.handoff.simulator --help`` says what can be run.
"""
