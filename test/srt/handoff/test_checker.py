"""The exhaustive checker in its bounds of a minute, its mutants, its stories, and that it leaves nothing out.

`make check-protocol` runs it in full.
"""

import dataclasses
import pickle
from pathlib import Path

import pytest
from checker import core, diagram, events, explore, golden, invariants, mutants, scenario, snapshot
from checker.machines import Machines, NotTheSame, Violation
from checker.narrate import story
from checker.scenario import BOUNDED, FAULTS, FULL, QUICK, Scenario
from checker.snapshot import Snapshots
from checker.world import World, first_world

DOCS = Path(__file__).parents[3] / "docs/seamless_handoff.md"


@pytest.fixture(scope="module")
def handoff():
    return core.load()


def told(result, handoff):
    """The story of a violation, for the report of a failed test."""
    return result.violation and story(result.scenario, handoff, handoff.Timing(**explore.TIMING), result.trace, result.violation)


# ---------------------------------------------------------------------------- the product
@pytest.mark.parametrize("world", BOUNDED, ids=lambda world: world.name)
def test_every_invariant_holds_in_every_state(world, handoff):
    result = explore.explore(world, handoff)
    assert result.violation is None, told(result, handoff)
    assert result.complete and result.ends


@pytest.mark.parametrize("world", FULL, ids=lambda world: world.name)
def test_every_invariant_holds_in_the_first_states_of_the_full_run(world, handoff):
    result = explore.explore(world, handoff, limit=3_000)
    assert result.violation is None, told(result, handoff)


# ---------------------------------------------------------------------------- its teeth
@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_killed_by_its_invariant(mutant):
    result = mutants.check(mutant)
    assert result.violation is not None, "it got away"
    assert result.violation.name in mutant.kills


def test_every_invariant_kills_a_mutant():
    named = {name for mutant in mutants.MUTANTS for name in mutant.kills}
    assert named == {
        "ONCE", "PREFIX", "ONE-GENERATOR", "IMMUTABLE", "FREED-ONCE", "FENCED", "TERMINATES", "CLOSED-BY-DEFAULT",
        "RAISES",  # which in the product ends the scheduler
    }  # fmt: skip
    assert len(mutants.MUTANTS) >= 15


def test_a_mutant_that_is_out_of_date_says_so():
    with pytest.raises(ValueError, match="not once"):
        core.load([("log", "no such line", "")])


def test_rules_of_a_mutant_do_not_stay(handoff):
    mutant = next(m for m in mutants.MUTANTS if m.rules)
    mutants.check(mutant)
    assert explore.explore(Scenario("after it", budget=2, faults=0), handoff).violation is None


def test_the_shortest_trace_comes_first_and_is_told_line_by_line(handoff):
    mutant = next(m for m in mutants.MUTANTS if m.name == "D relays the newest entry again")
    result = mutants.check(mutant)
    mutated = core.load(mutant.changes)
    text = story(result.scenario, mutated, mutated.Timing(**explore.TIMING), result.trace)
    assert len(result.trace) == 3
    assert text.startswith("t1 is sampled on P") and text.endswith("VIOLATION ONCE: the client has 1 tokens and gets number 1\n")


# ---------------------------------------------------------------------------- stories
@pytest.mark.parametrize("name", golden.TRACES)
def test_the_golden_trace(name, handoff):
    """`python -m checker --golden` writes them anew; look at the difference before that."""
    assert golden.text(name, handoff) == golden.path(name).read_text()


@pytest.mark.parametrize("name", golden.TRACES)
def test_a_golden_trace_ends(name, handoff):
    world_of, trace = golden.TRACES[name]
    world = first_world(world_of, Machines(handoff, handoff.Timing(**explore.TIMING)))
    for event in trace:
        assert event in (*events.ordinary(world), *events.faults(world)), event
        events.apply(world, event)
        invariants.check(world)
    assert invariants.is_end(world)
    invariants.check_end(world)


# ---------------------------------------------------------------------------- what it leaves out
# Small ones in which together all is done that a scenario can do.
SMALL = (
    "log of 3, one fault, but no stall and nothing late",
    "log of 2, one fault of any kind",
    "P can finish the answer, one fault, but no stall and nothing late",
    "only D sees the end, one fault, but no stall and nothing late",
)
WHOLE = [world for world in BOUNDED if world.name in SMALL]
WHOLE.append(Scenario("P turns to prompts", budget=3, kinds=frozenset({"P has no KV slot", "P stalls"}), prompts=True))


@pytest.fixture(scope="module")
def seen(handoff):
    """Machines after these scenarios, and every event that happened."""
    explored, happened, apply = [], set(), events.apply

    def noting(world, event):
        happened.add(event[0])
        apply(world, event)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(events, "apply", noting)
        for world in WHOLE:
            explored.append(Machines(handoff, handoff.Timing(**explore.TIMING)))
            explore.Explorer(world, explored[-1]).run()
    return explored, happened


def test_every_state_of_both_tables_is_reached(seen, handoff):
    states = {(facts.role, facts.state) for machines in seen[0] for facts in machines.facts if facts}
    expected = {("P", state.value) for state in handoff.PrefillState} | {("D", state.value) for state in handoff.DecodeState}
    assert states == expected


@pytest.mark.parametrize("role, name", [("P", "prefill_machine"), ("D", "decode_machine")])
def test_the_transitions_are_those_that_the_file_states(seen, role, name):
    """A call may make two at once."""
    stated = {(a, b) for a, b, _ in diagram.stated(diagram.docstring(core.CORE / f"{name}.py"))}
    happened = set().union(*(diagram.seen(machines, role) for machines in seen[0]))
    twice = {(a, d) for a, b in stated for c, d in stated if b == c}
    assert stated - happened == set(), "stated, and never made"
    assert happened - stated - twice == set(), "made, and not stated"


@pytest.mark.parametrize("name, first", diagram.MACHINES)
def test_the_documentation_shows_them(name, first):
    """`python -m checker --diagrams` prints them."""
    assert diagram.mermaid(diagram.docstring(core.CORE / f"{name}.py"), first) in DOCS.read_text()


def test_every_message_is_sent(seen, handoff):
    sent = {type(sent.message) for machines in seen[0] for sent in machines.sent}
    assert sent == set(handoff.Message.__args__)


def test_every_event_and_every_fault_happens(seen):
    assert seen[1] == set(events._DO)
    assert FAULTS <= set(events._DO)


def test_D_takes_over_alone_and_relays_only_and_resumes(seen):
    facts = [facts for machines in seen[0] for facts in machines.facts if facts and facts.role == "D"]
    assert any(f.alone and f.state == "owner" for f in facts)
    assert any(f.term == 2 and f.state == "finished" for f in facts)
    assert any(f.hopeless for f in facts)


# ---------------------------------------------------------------------------- its bookkeeping
def frozen(handoff, **more):
    snapshots = Snapshots(handoff, handoff.Timing(**explore.TIMING))
    machines = Machines(handoff, handoff.Timing(**explore.TIMING))
    machines.prefill(0, 7, 4, None)
    machine = machines._scratch["P"]
    vars(machine).update(more)
    return snapshots.freeze("P", machine)


@pytest.mark.parametrize("value", [1.5, [1], {"a": 1}, object(), 10**9])
def test_a_new_field_that_it_can_not_keep_is_an_error(handoff, value):
    with pytest.raises(TypeError, match="say"):
        frozen(handoff, _new=value)


@pytest.mark.parametrize("value", [None, True, 3, "x", b"x", (1, 2)])
def test_a_new_field_of_a_plain_kind_is_part_of_the_state(handoff, value):
    assert frozen(handoff, _new=value) != frozen(handoff, _new="other")


def test_a_field_that_comes_later_is_an_error(handoff):
    machines = Machines(handoff, handoff.Timing(**explore.TIMING))
    machines.prefill(0, 7, 4, None)
    machine = machines._scratch["P"]
    machine.late = 1
    with pytest.raises(TypeError, match="new fields: \\['late'\\]"):
        machines.snapshots.freeze("P", machine)


def test_what_is_thawed_freezes_to_the_same(seen):
    for machines in seen[0]:
        for frozen_ in machines.frozen[1:]:
            machine = machines._scratch[frozen_[0]]
            machines.snapshots.thaw(machine, frozen_)
            assert machines.snapshots.freeze(frozen_[0], machine) == frozen_


def test_an_instant_that_is_looked_at_and_not_named_is_found_out(handoff, monkeypatch):
    monkeypatch.setitem(snapshot.LOOKED_AT, ("D", "_echoed_at"), {"relaying"})
    with pytest.raises(NotTheSame):
        explore.Explorer(Scenario("x", faults=0), Machines(handoff, handoff.Timing(**explore.TIMING))).run()


@pytest.mark.parametrize("cut, settle", [(0, False), (2, True)])
def test_taking_instants_as_one_loses_nothing(handoff, monkeypatch, cut, settle):
    """Ages cut later, or no instant taken as old: more states, the same worlds to anyone who looks."""

    def looks(settle):
        machines = Machines(handoff, handoff.Timing(**explore.TIMING), settle)
        explorer = explore.Explorer(Scenario("x", budget=2, kinds=QUICK), machines)
        assert explorer.run().complete
        worlds = set()
        for key in explorer._keys:
            world = World(explorer.scenario, machines, explorer._packed(key))
            worlds.add((
                tuple((world.p(r), world.d(r), *r.pack()[2:]) for r in world.requests),
                tuple(type(machines.sent[s].message) for s in world.to_p + world.to_d),
                world.faults,
            ))  # fmt: skip
        return worlds, len(explorer._keys)

    plain, few = looks(True)
    init = Snapshots.__init__

    def later(self, *args):
        init(self, *args)
        self.stamp_age += cut
        for fields in (*self.ages.values(), *self.stamps.values()):
            for name in fields:
                fields[name] += cut

    monkeypatch.setattr(Snapshots, "__init__", later)
    careful, many = looks(settle)
    assert careful == plain and many > few


def test_a_scenario_says_all_that_it_is(handoff):
    names = [world.name for world in FULL]
    assert len(set(names)) == len(names)
    for world in FULL + BOUNDED:
        assert world.kinds <= FAULTS and dataclasses.replace(world) == world


def test_a_violation_names_itself():
    violation = Violation("ONCE", "why")
    assert str(violation) == "ONCE: why" and scenario.FAULTS
    assert str(pickle.loads(pickle.dumps(violation))) == str(violation), "the full run explores in worker processes"
