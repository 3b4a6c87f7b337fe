"""The benchmark suite: unified, PD and PD with the handoff under several kinds of traffic, on CPU or GPUs.

One job per file: arms (what is compared), traffic (what is asked, and when), send (asks it), block (what came, and its
JSON), statistics (quantiles and their intervals), figures (of an arm under a case), report, picture, cpu and gpu (cases and
servers of each), commands (GPU launch lines), __main__ (the run), again (a report from files of several runs).
"""
