"""Which samples a microbatch holds: every epoch uses each exactly once, in an order that only the seed decides."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from regrow.core.order import DataFrom, Plan, commit_seed, microbatch_seed, mix, permuted
from regrow.core.origin import DATA_FROM, DATASET_SIZE, unused


@given(st.integers(1, 400), st.integers(0, 2**64 - 1))
def test_a_permutation_is_a_bijection(size: int, key: int) -> None:
    assert sorted(permuted(offset, size, key) for offset in range(size)) == list(range(size))


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    return Plan(
        seed=draw(st.integers(0, 2**32)),
        lanes=draw(st.integers(1, 6)),
        microbatches_per_lane=draw(st.integers(1, 3)),
        batch_size=draw(st.integers(1, 4)),
        dataset_size=draw(st.integers(1, 60)),
    )


@given(plans())
def test_steps_tile_the_epochs_exactly(plan: Plan) -> None:
    samples_per_step = plan.lanes * plan.microbatches_per_lane * plan.batch_size
    steps = -(-2 * plan.dataset_size // samples_per_step)
    stream = [
        sample
        for step in range(steps)
        for lane in range(plan.lanes)
        for microbatch in range(plan.microbatches_per_lane)
        for sample in plan.samples(step, lane, microbatch)
    ]
    for epoch in range(2):
        part = stream[epoch * plan.dataset_size : (epoch + 1) * plan.dataset_size]
        assert sorted(part) == list(range(plan.dataset_size))


@given(plans(), st.integers(0, 100))
def test_a_lane_is_its_microbatches_in_order(plan: Plan, step: int) -> None:
    for lane in range(plan.lanes):
        parts = [plan.positions(step, lane, m) for m in range(plan.microbatches_per_lane)]
        assert [p for part in parts for p in part] == list(plan.lane_positions(step, lane))


def test_epochs_and_seeds_differ() -> None:
    plan = Plan(seed=1, lanes=1, microbatches_per_lane=1, batch_size=1, dataset_size=100)
    first, second = ([plan.sample(epoch * 100 + i) for i in range(100)] for epoch in (0, 1))
    assert first != second
    assert len({microbatch_seed(0, s, lane, m) for s in range(9) for lane in range(9) for m in range(9)}) == 729
    assert commit_seed(0, 1) != commit_seed(1, 0)


def test_mix_is_fixed_for_all_time() -> None:
    """A change here would change every job's data order."""
    assert mix(1, 2, 3) == mix(1, 2, 3) != mix(3, 2, 1)
    assert 0 <= mix(-1) < 2**64


OTHERS = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 3),
        "lanes": st.integers(1, 4),
        "microbatches_per_lane": st.integers(1, 2),
        "batch_size": st.integers(1, 3),
    }
)


@given(st.lists(st.tuples(OTHERS, st.integers(0, 8)), min_size=1, max_size=5), st.integers(1, 40))
def test_whatever_mathematics_a_job_goes_on_with_each_sample_of_an_epoch_is_used_once(
    runs: list[tuple[dict[str, int], int]], size: int
) -> None:
    begun, step, stream = DataFrom(), 0, []
    for chosen, steps in runs:
        begun = begun.within(chosen["seed"], size)
        plan = Plan(**chosen, dataset_size=size, data_from=begun)
        for at, lane, number in product(range(step, step + steps), range(plan.lanes), range(plan.microbatches_per_lane)):
            stream += plan.samples(at, lane, number)
        step += steps
        terms = {name: str(value) for name, value in chosen.items()}
        begun = unused({**terms, DATASET_SIZE: str(size), DATA_FROM: str(begun)}, step)
    for first in range(0, len(stream), size):
        epoch = stream[first : first + size]
        assert len(set(epoch)) == len(epoch)


def test_another_data_set_begins_with_an_epoch() -> None:
    begun = unused({"seed": "1", "lanes": "2", "microbatches_per_lane": "1", "batch_size": "3", DATASET_SIZE: "10"}, 3)
    assert begun == DataFrom(), "data without places goes on by its step"
    saved = {"seed": "1", "lanes": "2", "microbatches_per_lane": "1", "batch_size": "3", DATASET_SIZE: "10"}
    begun = unused({**saved, DATA_FROM: "0:0"}, 3)
    assert begun == DataFrom(step=3, place=18, seed=1, size=10) == DataFrom.parse(str(begun))
    assert begun.within(7, 10) == begun, "the rest of the epoch stays in its order"
    assert begun.within(1, 10) == DataFrom(step=3, place=18)
    assert begun.within(7, 16) == DataFrom(step=3, place=32)
