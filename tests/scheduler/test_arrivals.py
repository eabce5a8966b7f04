import pytest

from engine.scheduler.arrivals import Arrivals
from tests.scheduler.simulation import EOS, Simulation, make_enqueue, make_limits


def test_unseeded_sequences_get_different_seeds_and_given_seeds_stay() -> None:
    """BD-04."""
    arrivals = Arrivals(make_limits())
    drawn = {sequence.seed for sequence in arrivals.sequences(make_enqueue(n=20, seed=None), 0)}
    drawn |= {sequence.seed for sequence in Arrivals(make_limits()).sequences(make_enqueue(n=20, seed=None), 0)}
    assert len(drawn) == 40
    assert all(0 <= seed < 1 << 63 for seed in drawn)
    assert [sequence.seed for sequence in arrivals.sequences(make_enqueue(n=2, seed=11), 0)] == [11, 12]


def test_several_prompts_and_choices_become_sequences_with_their_index() -> None:
    sequences = Arrivals(make_limits()).sequences(make_enqueue([[1], [2, 3]], n=2), 0)
    assert [(s.index, s.prompt_index, s.tokens) for s in sequences] == [
        (0, 0, [1]),
        (1, 0, [1]),
        (2, 1, [2, 3]),
        (3, 1, [2, 3]),
    ]
    assert [s.seq_id for s in sequences] == [1, 2, 3, 4]


@pytest.mark.parametrize(("ignore_eos", "stops"), [(False, {EOS, 9}), (True, {9})])
def test_end_of_sequence_ids_stop_unless_ignored(ignore_eos: bool, stops: set[int]) -> None:
    message = make_enqueue(ignore_eos=ignore_eos, stop_token_ids=(9,))
    assert Arrivals(make_limits()).sequences(message, 0)[0].stop_ids == stops


def test_an_answer_is_cut_to_what_context_and_pool_leave_room_for() -> None:
    """LC-06 (b)."""
    sim = Simulation(num_blocks=5, block_size=4)
    sim.enqueue(range(17), max_tokens=300)
    sim.run()
    assert (len(sim.answers[1].token_ids), sim.answers[1].finish) == (3, "length")
    sim.check_idle()


@pytest.mark.parametrize("length", [20, 1000])
def test_a_prompt_that_can_never_run_is_refused_at_once_and_holds_up_nobody(length: int) -> None:
    """LC-06 (a) and (c)."""
    sim = Simulation(num_blocks=5, block_size=4)
    sim.enqueue([1] * length, request_id="big")
    sim.enqueue([1, 2], request_id="small", max_tokens=4)
    sim.step()
    (refused,) = sim.refused
    assert (refused.request_id, refused.status, refused.param) == ("big", 400, "prompt")
    assert str(length) in refused.message
    sim.run()
    assert [len(text) for text in sim.texts()] == [4]
    sim.check_idle()


def test_an_empty_prompt_is_refused_with_all_of_its_request() -> None:
    sim = Simulation()
    sim.enqueue([[1, 2], []])
    assert sim.step() is None
    assert len(sim.refused) == 1
    assert sim.answers == {}
