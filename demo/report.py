"""The content of report.json."""

import dataclasses

from demo import verdict
from demo.measure import Figures, Run, equal, figures, summary


def build(setup: dict, runs: dict[str, list[Run]]) -> dict:
    """Return the report: setup, each arm's figures, the goals, the problems, and every request with its tokens' times.

    Args:
        setup: how the runs were made; taken over.
        runs: by prompt, the runs of unified, PD and PD with handoff, in this order.
    """
    unified, pd, handoff = (list(of_arm) for of_arm in zip(*runs.values()))
    pd_same, handoff_same = ([equal(run, wanted) for run, wanted in zip(arm, unified)] for arm in (pd, handoff))
    sums = [summary([figures(run) for run in arm]) for arm in (unified, pd, handoff)]
    goals = verdict.goals(
        *sums,
        outputs_equal=verdict.share(pd_same + handoff_same),
        handed_off=verdict.share([run.handed_off for run in handoff]),
    )
    return {
        "setup": setup,
        "arms": [
            _arm(unified[0].arm, sums[0], None),
            _arm(pd[0].arm, sums[1], all(pd_same)),
            _arm(handoff[0].arm, sums[2], all(handoff_same)),
        ],
        "goals": [dataclasses.asdict(goal) | {"met": goal.met, "text": str(goal)} for goal in goals],
        "problems": verdict.problems(unified, [pd, handoff], handoff),
        # times in seconds since the request was sent, except where a name says ms
        "requests": [_request(run) for of_prompt in runs.values() for run in of_prompt],
    }


def _arm(name: str, figures_of_arm: Figures, equal_output: bool | None) -> dict:
    return {"arm": name} | dataclasses.asdict(figures_of_arm) | {"equal_output": equal_output}


def _request(run: Run) -> dict:
    return dataclasses.asdict(run) | {"figures": dataclasses.asdict(figures(run)), "handed_off": run.handed_off}
