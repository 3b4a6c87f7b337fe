"""python -m demo: run the three arms, print the table, write build/demo/report.json and build/demo/timeline.png.

Exit code 0 if every arm's output is equal and the handoffs took place; otherwise 1, and the last lines say what's wrong.
"""

import json
import sys
import time
from collections.abc import Iterator

import psutil
from transformers import AutoTokenizer

from demo import arms, prompts, report, timeline
from demo.measure import Run, most_typical
from demo.table import table
from rig import client, idle, network, process, servers

OUT = servers.ROOT / "build" / "demo"
MODEL_IN_WORDS = "SmolLM2-135M in float32 on CPU"
FAILURES = (FileNotFoundError, process.ProcessDied, process.NotReady, client.RequestFailed, idle.NotIdle)
NEW_TOKENS, WARM_UP_TOKENS = 96, 24
BUSY = 30  # percent of all cores, by other processes


def say(text: str) -> None:
    print(text, flush=True)


def chats() -> Iterator[tuple[str, str]]:
    """Yield each prompt's name and its text with the model's chat template; the first one is for warming up."""
    tokenizer = AutoTokenizer.from_pretrained(servers.SMOLLM2)
    for topic in (prompts.WARM_UP, *prompts.TOPICS):
        yield topic.name, tokenizer.apply_chat_template(topic.messages(), tokenize=False, add_generation_prompt=True)


def ask_all(running: list[arms.Arm]) -> dict[str, list[Run]]:
    """Ask every arm every prompt, one request at a time, and return the runs by prompt, in the order of the arms."""
    (warm_up, text), *asked = chats()
    for arm in running:
        say(f"   warm-up     {arm.name}")
        arm.ask(warm_up, text, WARM_UP_TOKENS)
    runs: dict[str, list[Run]] = {}
    for i, (name, text) in enumerate(asked):
        # each arm is first in turn, so that a busy machine disturbs none more than the others
        turn = [(i + j) % len(running) for j in range(len(running))]
        answers = {}
        for j in turn:
            answers[j] = run = running[j].ask(name, text, NEW_TOKENS)
            bridged = f", {run.handoff['tokens_bridged']} tokens bridged" if run.handed_off else ""
            say(
                f"   prompt {i + 1}/{len(asked)}  {run.arm:<13} first token {run.tokens[0].at:5.2f} s, "
                f"{len(run.tokens)} tokens in {run.ended_at:5.2f} s{bridged}"
            )
        runs[name] = [answers[j] for j in range(len(running))]
    return runs


def main() -> int:
    started_at = time.monotonic()
    namespaces, how = network.shaped_by_kernel()
    say(f"== KV link of {arms.LINK_MBIT} Mbit/s, {how}")
    # now, since the load average still has this command's own setup in it
    busy = psutil.cpu_percent(1.0)
    if busy > BUSY:
        say(f"   Note: other processes keep {busy:.0f} % of this machine busy, so times will be longer and uneven.")
    say("== Starting 5 workers and 2 routers on this machine: about a minute on 2 free cores, 8 GB of memory")
    try:
        with arms.running(namespaces) as running:
            say(f"   up after {time.monotonic() - started_at:.0f} s")
            say(f"== Asking {len(prompts.TOPICS)} prompts, one at a time, of every arm")
            runs = ask_all(running)
    except FAILURES as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    setup = {
        "model": servers.SMOLLM2.name,
        "dtype": arms.OPTIONS.dtype,
        "link_mbit": arms.LINK_MBIT,
        "link": how,
        "new_tokens": NEW_TOKENS,
        "concurrency": 1,
        "busy_percent_before": busy,
    }
    result = report.build(setup, runs)
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "report.json").write_text(json.dumps(result, indent=1) + "\n")
    drawn = f"{MODEL_IN_WORDS}, KV link of {arms.LINK_MBIT} Mbit/s"
    timeline.draw(runs[most_typical(runs)], drawn, OUT / "timeline.png")
    say(f"\n{table(result['arms'])}\n")
    for goal in result["goals"]:
        say(goal["text"])
    say(f"\nwritten: {OUT.relative_to(servers.ROOT)}/report.json and timeline.png")
    for problem in result["problems"]:
        print(f"demo: {problem}", file=sys.stderr)
    return 1 if result["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
