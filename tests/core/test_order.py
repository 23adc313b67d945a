"""Which samples a microbatch holds: every epoch uses each exactly once, in an order that only the seed decides."""

from hypothesis import given
from hypothesis import strategies as st

from regrow.core.order import Plan, commit_seed, microbatch_seed, mix, permuted


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
