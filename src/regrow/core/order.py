"""Which samples a microbatch holds, and which seed it draws from: pure functions of (seed, position).

The epochs, each permuted by (seed, epoch), form one endless stream; a step takes the next samples of it. The permutation
is a keyed Feistel network walked until it lands inside the data set, so nothing is stored and any position costs the same.
"""

import msgspec

_MASK = (1 << 64) - 1


def mix(*words: int) -> int:
    """64 well-mixed bits of a sequence of integers (the splitmix64 finaliser, chained)."""
    state = 0x9E3779B97F4A7C15
    for word in words:
        state = (state + (word & _MASK) * 0xD1342543DE82EF95 + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


class DataFrom(msgspec.Struct, frozen=True, kw_only=True):
    """From this step on samples are taken from this place of the stream: other than from its beginning in a job that went on
    with other mathematics, where samples used before must not be used again."""

    step: int = 0
    place: int = 0
    seed: int | None = None
    """The epoch of that place is in the order that this seed gave it, to its end; None: the job's own."""
    size: int = 0
    """Of the data set that it was the order of."""

    def __str__(self) -> str:
        order = "" if self.seed is None else f":{self.seed}:{self.size}"
        return f"{self.step}:{self.place}{order}"

    @staticmethod
    def parse(text: str) -> "DataFrom":
        step, place, *order = map(int, text.split(":"))
        return DataFrom(step=step, place=place, **dict(zip(("seed", "size"), order, strict=False)))

    def within(self, seed: int, size: int) -> "DataFrom":
        """The same for a data set of this size and a job with this seed. Another data set has no rest that was not used: an
        epoch of it begins."""
        if self.seed is not None and self.size != size:
            return DataFrom(step=self.step, place=-(-self.place // size) * size)
        return DataFrom(step=self.step, place=self.place) if self.seed == seed else self


class Grid(msgspec.Struct, frozen=True, kw_only=True):
    """How steps are cut into lanes and microbatches, whatever these hold."""

    seed: int
    lanes: int
    microbatches_per_lane: int
    data_from: DataFrom = DataFrom()

    def place(self, step: int, lane: int, microbatch: int) -> int:
        """The number of this microbatch among all of the job's."""
        return (step * self.lanes + lane) * self.microbatches_per_lane + microbatch

    def lane_positions(self, step: int, lane: int) -> range:
        """What the lane takes of the job's data, as places in its order: here, of microbatches."""
        first = self.place(step, lane, 0)
        return range(first, first + self.microbatches_per_lane)


class Plan(Grid, frozen=True, kw_only=True):
    """How the endless stream of samples is cut into steps, lanes and microbatches."""

    batch_size: int
    dataset_size: int

    def positions(self, step: int, lane: int, microbatch: int) -> range:
        """Places in the stream of this microbatch's samples."""
        begun = self.data_from
        start = begun.place + self.place(step - begun.step, lane, microbatch) * self.batch_size
        return range(start, start + self.batch_size)

    def lane_positions(self, step: int, lane: int) -> range:
        first = self.positions(step, lane, 0)
        return range(first.start, first.start + self.microbatches_per_lane * self.batch_size)

    def sample(self, position: int) -> int:
        """The data set's index at this place of the stream."""
        epoch, offset = divmod(position, self.dataset_size)
        begun, seed = self.data_from, self.seed
        if begun.seed is not None and epoch == begun.place // self.dataset_size:
            seed = begun.seed
        return permuted(offset, self.dataset_size, mix(seed, 0x0E70C4, epoch))

    def samples(self, step: int, lane: int, microbatch: int) -> tuple[int, ...]:
        return tuple(self.sample(position) for position in self.positions(step, lane, microbatch))


def permuted(offset: int, size: int, key: int) -> int:
    """Where a keyed permutation of range(size) sends this offset."""
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    value = offset
    while True:
        left, right = value >> half, value & mask
        for turn in range(4):
            left, right = right, left ^ (mix(key, turn, right) & mask)
        value = (left << half) | right
        if value < size:
            return value


def microbatch_seed(seed: int, step: int, lane: int, microbatch: int) -> int:
    """The random state a microbatch starts from, whoever computes it."""
    return mix(seed, 0x3B, step, lane, microbatch)


def fetch_seed(seed: int, step: int, lane: int, microbatch: int) -> int:
    """The random state in which a microbatch's data is made: not the one that it is computed with."""
    return mix(seed, 0xDA, step, lane, microbatch)


def sample_seed(seed: int, position: int) -> int:
    """The random state in which the sample at this place of the stream is read: another one in each epoch."""
    return mix(seed, 0x5A, position)


def item_seed(seed: int, epoch: int, lane: int, item: int) -> int:
    """The random state in which an item of a lane's own stream is read; lane -1: of a stream that all lanes read."""
    return mix(seed, 0x17, epoch, lane, item)


def commit_seed(seed: int, step: int) -> int:
    """The random state everyone has on leaving the inner loop of this step."""
    return mix(seed, 0xC0, step)
