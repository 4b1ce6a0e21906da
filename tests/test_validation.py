import numpy as np
import pytest

from localw2._validation import seed_from


def test_an_int_always_gives_the_same_seed():
    expected = int(np.random.default_rng(3).integers(2**63))
    assert seed_from(3) == seed_from(np.uint8(3)) == expected
    assert seed_from(4) != expected


@pytest.mark.parametrize("kind", [np.random.default_rng, np.random.RandomState])
def test_a_generator_is_advanced(kind):
    first, again = kind(3), kind(3)
    seeds = [seed_from(first), seed_from(first)]
    assert seeds[0] != seeds[1]
    assert seeds == [seed_from(again), seed_from(again)]
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_none_is_fresh_entropy_and_leaves_the_global_generator():
    before = np.random.get_state()[1].copy()  # noqa: NPY002 - the global generator is what must not change
    assert seed_from(None) != seed_from(None)
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002 - as above


@pytest.mark.parametrize("random_state", [True, np.True_, -1, 1.0, "0", [0]])
def test_anything_else_is_refused(random_state):
    with pytest.raises(ValueError, match="random_state"):
        seed_from(random_state)
