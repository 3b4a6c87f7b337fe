"""python -m rig: a prefill worker, a decode worker and a router with the handoff, kept up until Ctrl-C, to try things by hand."""

import argparse
import pathlib
import signal
import sys

from rig import process, servers, stack

LINK_MBIT = 10  # at 2 KiB of KV a token, the 129 tokens that are asked for below take 0.2 s


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m rig", description=__doc__)
    parser.add_argument("--model", type=pathlib.Path, default=servers.TINY, help="folder of the model; default: the tiny one")
    parser.add_argument("--link-mbit", type=float, default=LINK_MBIT, help="rate of the KV link")
    parser.add_argument("--off", action="store_true", help="without the handoff")
    args = parser.parse_args()
    print("starting two workers and a router: about a minute", flush=True)
    pair = stack.pair(
        servers.Options(model=args.model, args=("--enable-metrics",)),
        prefill_handoff=not args.off,
        decode_handoff=not args.off,
        link_mbit=args.link_mbit,
    )
    for sign in signal.SIGINT, signal.SIGTERM:  # a shell lets what it starts in the background ignore the former
        signal.signal(sign, signal.default_int_handler)
    try:
        with pair as running:
            print(_text(running), flush=True)
            signal.pause()
    except KeyboardInterrupt:
        return 0
    except (FileNotFoundError, process.ProcessDied, process.NotReady) as error:
        print(f"rig: {error}", file=sys.stderr)
        return 1


def _text(pair: stack.Pair) -> str:
    body = '{"input_ids": [' + ", ".join(str(10 + n % 480) for n in range(0, 900, 7)) + "], "
    body += '"sampling_params": {"temperature": 0, "max_new_tokens": 128, "ignore_eos": true}}'
    return f"""
router   {pair.url}
prefill  {pair.prefill.url}   log {pair.prefill.log}
decode   {pair.decode.url}   log {pair.decode.log}

curl -s {pair.url}/generate -d '{body}' -H 'Content-Type: application/json' | python3 -m json.tool
curl -s {pair.decode.url}/server_info | python3 -c 'import json, sys; print(json.load(sys.stdin)["internal_states"][0].get("seamless_handoff"))'
curl -s {pair.prefill.url}/metrics | grep ^sglang:handoff

Ctrl-C ends them.
"""


if __name__ == "__main__":
    sys.exit(main())
