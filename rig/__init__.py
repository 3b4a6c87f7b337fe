"""The rig: real SGLang servers, routers, links and clients on one machine, for tests, demo and benchmarks.

    from rig import client, stack
    with stack.pair() as pair:
        answer = client.generate(pair.url, [5, 6, 7], max_new_tokens=8)

`python -m rig` keeps a pair up. One job per file: ports, process, network, hold, servers, stack, client, idle.
"""
