"""The stage table over every combination, and the recipients' stages over every order of facts."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sendonce.outcome import (
    Accepted,
    AccountFault,
    Deferred,
    NotOffered,
    Outcome,
    Refused,
    Reply,
    Unanswered,
)
from sendonce.stages import (
    AttemptFacts,
    Limits,
    Proof,
    RecipientStage,
    RecipientView,
    Stage,
    Verdict,
    email_stage,
    is_silent,
    next_generation,
    recipient_view,
)

PROPERTY = settings(deadline=None, derandomize=True, max_examples=400)
R = RecipientStage


def oracle(stages: tuple[RecipientStage, ...], limits: Limits) -> Verdict:
    """The rules in the words of the documentation, read from the top: the first that fits decides."""
    kinds = set(stages)
    if R.UNANSWERED in kinds and not limits.unknown_closed:
        return Verdict(Stage.UNKNOWN)
    maybe = R.UNANSWERED in kinds
    at_a_limit = limits.cancelled or limits.expired or limits.exhausted or limits.unknown_closed
    if kinds & {R.OUTSTANDING, R.DEFERRED} and not at_a_limit:
        return Verdict(Stage.PENDING)
    if kinds == {R.ACCEPTED}:
        return Verdict(Stage.SENT)
    if R.ACCEPTED in kinds:
        return Verdict(Stage.SENT, partial=True, maybe_accepted=maybe)
    if kinds <= {R.REFUSED, R.SUPPRESSED}:
        return Verdict(Stage.FAILED)
    by_limit = Stage.CANCELLED if limits.cancelled else Stage.EXPIRED if limits.expired else Stage.DEAD
    return Verdict(by_limit, maybe_accepted=maybe)


def test_the_stage_table_over_every_combination_of_recipients_and_limits() -> None:
    seen = set()
    for flags in itertools.product((False, True), repeat=4):
        limits = Limits(*flags)
        for size in (1, 2, 3, 4):
            for stages in itertools.combinations_with_replacement(tuple(R), size):
                verdict = email_stage(stages, limits)
                assert verdict == oracle(stages, limits), (stages, limits)
                seen.add(verdict)
    assert {v.stage for v in seen} == set(Stage) - {Stage.CLAIMED, Stage.TRANSMITTING}


@PROPERTY
@given(st.lists(st.sampled_from(R), min_size=1), st.tuples(*[st.booleans()] * 4), st.data())
def test_the_order_of_recipients_does_not_matter(
    stages: list[RecipientStage], flags: tuple[bool, bool, bool, bool], data: st.DataObject
) -> None:
    assert email_stage(data.draw(st.permutations(stages)), Limits(*flags)) == email_stage(stages, Limits(*flags))


def test_only_the_five_final_stages_are_final() -> None:
    assert {s.value for s in Stage if s.final} == {"sent", "failed", "dead", "expired", "cancelled"}


# What can be known of a mail to recipients 0 and 1 -------------------------------------------------------------

replies = st.builds(Reply, st.sampled_from([0, 250, 401, 421, 550]))
outcomes: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(Accepted, replies, st.just("id-1"), st.booleans()),
    st.builds(Deferred, replies),
    st.builds(Refused, replies, st.booleans()),
    st.builds(AccountFault, replies),
    st.builds(Unanswered, replies),
    st.builds(NotOffered, replies),
)


@st.composite
def histories(draw: st.DrawFn) -> list[AttemptFacts]:
    generation, facts = 1, []
    for number in range(1, draw(st.integers(0, 6)) + 1):
        generation += draw(st.sampled_from([0, 0, 1]))
        facts.append(
            AttemptFacts(
                attempt_id=f"a{number}",
                number=number,
                generation=generation,
                offered=draw(st.sampled_from([(), (0,), (0, 1), (1,)])),
                in_flight=draw(st.sampled_from([False, False, False, True])),
                answers=draw(st.dictionaries(st.sampled_from([0, 1]), outcomes)),
            )
        )
    return facts


proofs = st.lists(st.builds(Proof, st.sampled_from([0, 1]), st.booleans(), st.integers(1, 5)), max_size=3)


@PROPERTY
@given(histories(), proofs, st.booleans(), st.integers(0, 6), st.data())
def test_facts_say_the_same_in_whatever_order_they_arrived(
    history: list[AttemptFacts], evidence: list[Proof], suppressed: bool, floor: int, data: st.DataObject
) -> None:
    shuffled, shuffled_evidence = data.draw(st.permutations(history)), data.draw(st.permutations(evidence))
    expected = recipient_view(0, history, evidence, suppressed=suppressed, floor=floor)
    assert recipient_view(0, shuffled, shuffled_evidence, suppressed=suppressed, floor=floor) == expected
    views = {0: expected}
    current = max((a.generation for a in history), default=1)
    assert next_generation(current, shuffled, views) == next_generation(current, history, views)


@PROPERTY
@given(histories(), proofs, st.booleans(), st.integers(0, 6))
def test_acceptance_wins_over_everything(
    history: list[AttemptFacts], evidence: list[Proof], suppressed: bool, floor: int
) -> None:
    accepted = any(isinstance(a.answers.get(0), Accepted) for a in history) or any(
        p.accepted and p.ordinal == 0 for p in evidence
    )
    view = recipient_view(0, history, evidence, suppressed=suppressed, floor=floor)
    assert (view.stage is R.ACCEPTED) == accepted


SILENT = AttemptFacts("a1", 1, 1, offered=(0,))
REFUSED = Refused(Reply(550))


@PROPERTY
@given(st.lists(st.tuples(outcomes, st.integers(1, 3), st.booleans()), max_size=5), st.integers(0, 6), st.booleans())
def test_a_silence_stays_through_whatever_later_attempts_are_answered(
    later: list[tuple[Outcome, int, bool]], floor: int, suppressed: bool
) -> None:
    history = [SILENT] + [
        AttemptFacts(f"a{n}", n, generation, (0,) if offered else (), answers={0: outcome})
        for n, (outcome, generation, offered) in enumerate(later, start=2)
    ]
    stage = recipient_view(0, history, suppressed=suppressed, floor=floor).stage
    if any(isinstance(o, Accepted) for o, _, _ in later):
        assert stage is R.ACCEPTED
    elif any(isinstance(o, Refused) and o.replayed and g == 1 for o, g, _ in later) and not any(
        isinstance(o, Unanswered) for o, _, _ in later
    ):
        assert stage is not R.UNANSWERED
    elif not any(isinstance(o, Refused) and o.replayed for o, _, _ in later):
        assert stage is R.UNANSWERED


@pytest.mark.parametrize("late", [Refused(Reply(550)), Deferred(Reply(451)), AccountFault(Reply(401)), NotOffered()])
def test_the_late_answer_to_the_silent_attempt_itself_ends_the_silence(late: Outcome) -> None:
    expected = {"refused": R.REFUSED, "deferred": R.DEFERRED}.get(late.kind, R.OUTSTANDING)
    assert recipient_view(0, [replace(SILENT, answers={0: late})]).stage is expected


def test_a_refusal_that_is_no_documented_replay_does_not_end_the_silence() -> None:
    replay = AttemptFacts("a2", 2, 1, (0,), answers={0: Refused(Reply(550), replayed=True)})
    assert recipient_view(0, [SILENT, replay]).stage is R.REFUSED
    assert recipient_view(0, [SILENT, replace(replay, answers={0: REFUSED})]).stage is R.UNANSWERED
    assert recipient_view(0, [SILENT, replace(replay, generation=2)]).stage is R.UNANSWERED


def test_a_replay_answers_the_silence_before_it_and_none_after_it() -> None:
    replay = AttemptFacts("a1", 1, 1, (0,), answers={0: Refused(Reply(550), replayed=True)})
    assert recipient_view(0, [replay, replace(SILENT, attempt_id="a2", number=2)]).stage is R.UNANSWERED


@pytest.mark.parametrize(
    ("proof", "stage"),
    [
        (Proof(0, False, 1), R.OUTSTANDING),
        (Proof(0, False, 2), R.OUTSTANDING),
        (Proof(0, False, 0), R.UNANSWERED),
        (Proof(1, False, 1), R.UNANSWERED),
        (Proof(0, True, 1), R.ACCEPTED),
        (Proof(1, True, 1), R.UNANSWERED),
    ],
)
def test_a_proof_settles_its_recipient_up_to_its_generation(proof: Proof, stage: RecipientStage) -> None:
    assert recipient_view(0, [SILENT], [proof]).stage is stage


def test_what_is_in_flight_is_neither_silent_nor_answered() -> None:
    flying = replace(SILENT, in_flight=True)
    assert not is_silent(flying, 0)
    assert recipient_view(0, [flying]).stage is R.OUTSTANDING


def test_an_attempt_is_silent_for_those_it_was_offered_to_only() -> None:
    assert is_silent(SILENT, 0)
    assert not is_silent(SILENT, 1)
    assert not is_silent(AttemptFacts("a1", 1, 1), 0)


def test_an_unanswered_result_is_a_silence_even_if_begin_did_not_name_the_recipient() -> None:
    assert recipient_view(0, [AttemptFacts("a1", 1, 1, answers={0: Unanswered()})]).stage is R.UNANSWERED


def test_the_latest_definite_answer_counts() -> None:
    first = AttemptFacts("a1", 1, 1, (0,), answers={0: Deferred(Reply(451))})
    second = AttemptFacts("a2", 2, 2, (0,), answers={0: REFUSED})
    assert recipient_view(0, [first, second]) == RecipientView(R.REFUSED, Reply(550), "", "a2")
    assert recipient_view(0, [replace(first, number=3), second]).stage is R.DEFERRED


def test_a_requeue_forgets_refusals_and_never_silences() -> None:
    refused = AttemptFacts("a1", 1, 1, (0,), answers={0: REFUSED})
    assert recipient_view(0, [refused], floor=1).stage is R.OUTSTANDING
    assert recipient_view(0, [refused], floor=0).stage is R.REFUSED
    assert recipient_view(0, [SILENT], floor=1).stage is R.UNANSWERED


def test_suppression_hides_refusals_and_never_silences() -> None:
    refused = AttemptFacts("a1", 1, 1, (0,), answers={0: REFUSED})
    assert recipient_view(0, [refused], suppressed=True).stage is R.SUPPRESSED
    assert recipient_view(0, [SILENT], suppressed=True).stage is R.UNANSWERED


@PROPERTY
@given(histories(), proofs, st.integers(1, 7))
def test_no_generation_is_opened_over_an_unanswered_recipient(
    history: list[AttemptFacts], evidence: list[Proof], current: int
) -> None:
    views = {n: recipient_view(n, history, evidence) for n in (0, 1)}
    following = next_generation(current, history, views)
    assert following in (current, current + 1)
    if any(v.stage is R.UNANSWERED for v in views.values()):
        assert following == current


@pytest.mark.parametrize(
    "answer", [Accepted(Reply(250)), Deferred(Reply(451)), REFUSED, AccountFault(Reply(403)), NotOffered()]
)
def test_a_generation_ends_once_all_that_was_offered_under_it_is_answered(answer: Outcome) -> None:
    attempt = AttemptFacts("a1", 1, 3, (0,), answers={0: answer})
    views = {0: RecipientView(R.OUTSTANDING)}
    assert next_generation(3, [attempt], views) == 4
    assert next_generation(3, [attempt], {**views, 1: RecipientView(R.UNANSWERED)}) == 3
    assert next_generation(3, [replace(attempt, in_flight=True)], views) == 3
    assert next_generation(3, [replace(attempt, generation=2)], views) == 3
    assert next_generation(3, [replace(attempt, offered=())], views) == 3
