"""Hypothesis walks where the exhaustive checker can't reach: long logs, many rounds and terms, faults by the dozen.

The worlds, events and invariants are the checker's; here they are drawn, and a failure is shrunk to a short story.
"""

import pytest
from checker import core, events, explore, invariants, mutants
from checker.machines import Machines, Violation
from checker.scenario import FAULTS, Scenario
from checker.world import first_world
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

# More steps than any fair run to an end takes.
LONGEST_RUN = 3_000
SETTINGS = settings(
    max_examples=300, stateful_step_count=60, deadline=None, derandomize=True, database=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip

worlds = st.builds(
    Scenario,
    name=st.just("drawn"),
    answer=st.integers(1, 40),
    budget=st.integers(1, 30),
    p_sees=st.sampled_from(["TOKEN", "LENGTH", None]),
    p_sees_at=st.integers(0, 20),
    faults=st.integers(0, 12),
    kinds=st.sets(st.sampled_from(sorted(FAULTS))).map(frozenset),
    requests=st.integers(1, 3),
    overlap=st.booleans(),
    limits=st.sampled_from([(1, 9), (2,), (64,)]),
    seal_lag=st.integers(0, 4),
    ahead=st.integers(0, 3),
    rounds=st.integers(1, 5),
    prompts=st.booleans(),
)


def fair_end(world):
    """No more faults: let what is ready happen until every request has ended, the clock last.

    Raises:
        Violation: it never ends, or not as it should; or an invariant does not hold on the way.
    """
    for _ in range(LONGEST_RUN):
        if invariants.is_end(world):
            return invariants.check_end(world)
        before = world.pack()
        for event in sorted(events.ordinary(world), key=lambda event: event[0] == "clock"):
            after = events.copy(world)
            events.apply(after, event)
            if after.pack() != before:
                world = after
                invariants.check(world)
                break
        else:
            raise Violation("TERMINATES", "nothing can happen any more, and it is no end")
    raise Violation("TERMINATES", f"no end after {LONGEST_RUN} steps")


def walk(handoff, kinds=None):
    """A machine of rules over ``handoff``, which is the product's core or a mutant's; with faults of ``kinds`` alone."""

    class Walk(RuleBasedStateMachine):
        @initialize(scenario=worlds)
        def begins(self, scenario):
            budget = min(scenario.budget, scenario.answer)
            scenario = Scenario(**vars(scenario) | {"budget": budget, "p_sees_at": min(scenario.p_sees_at, scenario.answer)})
            if kinds is not None:
                scenario = Scenario(**vars(scenario) | {"kinds": kinds})
            self.world = first_world(scenario, Machines(handoff, handoff.Timing(**explore.TIMING)))

        def ready(self):
            return list((events.afterwards if invariants.is_end(self.world) else events.ordinary)(self.world))

        @rule(number=st.integers(0, 60))
        def goes_on(self, number):
            ready = self.ready()
            if ready:  # else all is over; a rule must be there all the same
                events.apply(self.world, ready[number % len(ready)])

        @precondition(lambda self: not invariants.is_end(self.world) and any(events.faults(self.world)))
        @rule(number=st.integers(0, 60))
        def goes_wrong(self, number):
            faults = list(events.faults(self.world))
            events.apply(self.world, faults[number % len(faults)])

        @invariant()
        def every_invariant_holds(self):
            if hasattr(self, "world"):
                invariants.check(self.world)

        def teardown(self):
            if hasattr(self, "world"):
                fair_end(self.world)

    return Walk


def test_every_invariant_holds_on_long_walks():
    run_state_machine_as_test(walk(core.load()), settings=SETTINGS)


@pytest.mark.parametrize(
    "name",
    ["D relays the newest entry again", "P has no lease", "a log that skips an entry that is missing", "a sealed P waits for D forever"],
)
def test_long_walks_find_a_mutant(name):
    """Each within the walks that the machines themselves pass, with faults of the kinds that its place can be hit by."""
    mutant = next(m for m in mutants.MUTANTS if m.name == name)
    mutated = walk(core.load(mutant.changes), mutant.world["kinds"])
    with pytest.raises(Violation, match="|".join(mutant.kills)):
        run_state_machine_as_test(mutated, settings=settings(SETTINGS, max_examples=2_000, phases=[Phase.generate]))
