"""The simulator held against real workers: the same closed loops, measured on the rig and simulated, at stated costs.

The rig's workers keep to a pace (`rig.pace`), so that every forward takes what the simulator says it takes, and P and D
don't take each other's time on one machine's two cores. All else is real: schedulers, admission, control channel, Mooncake
over TCP, router, clients.

One job per file: points (what comes, and what it costs), measured, simulated, figures, report, __main__ (the run).
"""
