"""python -m rig: a prefill worker, a decode worker and a router with the handoff, kept up until Ctrl-C, to try things by hand."""

import argparse
import pathlib
import signal
import sys

from rig import process, servers, stack

LINK_MBIT = 10  # at 2 KiB of KV a token, the prompt that is asked with below takes 0.2 s
TOKENS = 1024  # twice what P bridges at most: D takes over whatever a first transfer takes
BOTH, SIDES = "both", ("prefill", "decode")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m rig", description=__doc__, epilog="What follows -- goes to both workers, as in -- --disaggregation-handoff-verify"
    )
    parser.add_argument("--model", type=pathlib.Path, default=servers.TINY, help="folder of the model; default: the tiny one")
    parser.add_argument("--link-mbit", type=float, default=LINK_MBIT, help=f"rate of the KV link in Mbit/s; default: {LINK_MBIT}")
    parser.add_argument(
        "--off", nargs="?", const=BOTH, choices=(*SIDES, BOTH), help="without the handoff, on both workers or on one of them"
    )
    parser.add_argument("worker_args", nargs="*", metavar="-- ARGUMENT", help="more arguments of SGLang's, for both workers")
    args = parser.parse_args()
    on = {f"{side}_handoff": args.off not in (side, BOTH) for side in SIDES}
    print("starting two workers and a router: about a minute", flush=True)
    options = servers.Options(model=args.model, args=("--enable-metrics", *args.worker_args))
    pair = stack.pair(options, **on, link_mbit=args.link_mbit)
    for sign in signal.SIGINT, signal.SIGTERM:  # a shell lets what it starts in the background ignore the former
        signal.signal(sign, signal.default_int_handler)
    try:
        with pair as running:
            print(_text(running, all(on.values())), flush=True)
            signal.pause()
    except KeyboardInterrupt:
        return 0
    except (FileNotFoundError, process.ProcessDied, process.NotReady) as error:
        print(f"rig: {error}", file=sys.stderr)
        return 1


def _text(pair: stack.Pair, handoff: bool) -> str:
    body = '{"input_ids": [' + ", ".join(str(10 + n % 480) for n in range(0, 900, 7)) + "], "
    body += f'"sampling_params": {{"temperature": 0, "max_new_tokens": {TOKENS}, "ignore_eos": true}}}}'
    expected = 'meta_info["handoff"]: outcome "committed", tokens_bridged above 0' if handoff else "an answer without a handoff"
    return f"""
router   {pair.url}
prefill  {pair.prefill.url}   log {pair.prefill.log}
decode   {pair.decode.url}   log {pair.decode.log}

A request, which should give {expected}:
curl -s {pair.url}/generate -d '{body}' -H 'Content-Type: application/json' | python3 -c 'import json, sys; a = json.load(sys.stdin); a.pop("output_ids"); print(json.dumps(a, indent=1))'

What D knows of P, and what P has counted:
curl -s {pair.decode.url}/server_info | python3 -c 'import json, sys; print(json.load(sys.stdin)["internal_states"][0].get("seamless_handoff"))'
curl -s {pair.prefill.url}/metrics | grep ^sglang:handoff

Ctrl-C ends them.
"""


if __name__ == "__main__":
    sys.exit(main())
