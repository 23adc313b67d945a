"""Saves that die, stand still or race: a checkpoint is complete or absent, and the latest only moves forward."""

import itertools
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from mounts import IMAGE_OPTIONS, image, mounted
from saver import SHARDS
from shelf import Clinging, Dead, Interposed, Mortal, Refusing, Shelf, drafted, load, newest, same, save, small

from regrow.core.checkpoint import Pointer
from regrow.core.errors import Fenced, InfraError, StateError
from regrow.core.retention import Retention
from regrow.state.archive import Archive
from regrow.state.local_store import LocalStore
from regrow.state.store import Store

TREE = {"a": small(0), "b": small(1)}
"""Of several shards when they are small."""


def folders(store: Store) -> list[str]:
    return [name for name in store.names() if name != "pointers"]


def is_clean(archive: Archive) -> bool:
    """Every folder is a checkpoint that loads, and there is nothing else."""
    pointers, damages = archive.pointers()
    named = sorted(pointer.folder for pointer in pointers)
    return not damages and folders(archive.store) == named and not any(archive.verify(pointer) for pointer in pointers)


# Saves that die


def save_changes() -> int:
    mortal = Mortal(Shelf())
    save(mortal, 1, tree=TREE, shard_bytes=8)
    return mortal.changes


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", range(1, save_changes() + 1))
def test_a_save_that_died_at_any_change_is_complete_or_absent(at: int, after: bool) -> None:
    shelf = Shelf()
    save(shelf, 1, tree=TREE)
    with pytest.raises(Dead):
        save(Mortal(shelf, at, after), 2, tree=TREE, shard_bytes=8)
    archive = Archive(shelf)
    step, state, damages = newest(archive)
    is_complete = at == save_changes() and after
    assert (step, damages) == (2 if is_complete else 1, []) and same(state, TREE)
    left = [folder for folder in folders(shelf) if folder not in {p.folder for p in archive.pointers()[0]}]
    assert bool(left) == (not is_complete and (at > 1 or after))
    assert archive.sweep() == (), "it may be under way still: its step is ahead of the latest"
    save(shelf, 3, tree=TREE)
    assert list(archive.sweep()) == left
    assert is_clean(archive) and newest(archive)[0] == 3


POINTS = ["save-shard:nth=1", f"save-shard:nth={SHARDS}", "save-manifest", "save-pointer", "save-done"]


@pytest.mark.process
@pytest.mark.parametrize("point", POINTS)
def test_a_process_killed_at_any_point_of_a_save_leaves_the_latest_whole(tmp_path: Path, point: str) -> None:
    name, _, nth = point.partition(":")
    fault = ":".join(["saver", name, "step=2", *([nth] if nth else []), "SIGKILL"])
    doomed = Saver(tmp_path, 1, 1, 2, fault)
    assert doomed.end() == (["saved 1 1"], -signal.SIGKILL)
    archive = Archive(LocalStore(tmp_path))
    step, state, damages = newest(archive)
    is_complete = name == "save-done"
    assert (step, damages) == (2 if is_complete else 1, []) and state[0][0] == step
    assert archive.newest_term() == 1
    lines, code = Saver(tmp_path, 2, 2, 2).end()
    assert (lines, code) == ([f"saved 2 {3 if is_complete else 2}"], 0)
    assert len(archive.sweep()) == (not is_complete)
    assert is_clean(archive)


BLOCKS = 18
"""Of a save by saver.py: at the last one, the pointer has its name, and that is not durable."""


@pytest.mark.process
def test_a_save_that_is_found_complete_is_durable_whoever_died_over_it(tmp_path: Path) -> None:
    disk = image(tmp_path / "image", 32 << 20)
    with mounted(tmp_path / "disk", *IMAGE_OPTIONS, str(disk)) as place:
        assert Saver(place / "store", 1, 1, 1).end()[1] == 0
        doomed = Saver(place / "store", 1, 2, 2, f"saver:save-block:nth={BLOCKS}:SIGKILL")
        assert doomed.end() == ([], -signal.SIGKILL)
        assert newest(Archive(LocalStore(place / "store")))[0] == 2
        assert after_power(disk, tmp_path / "before") == 1, "its name was not durable yet"
        assert Saver(place / "store", 1, 2, 2).end() == (["saved 2 2"], 0)
        assert after_power(disk, tmp_path / "after") == 2


def after_power(disk: Path, folder: Path) -> int | None:
    """The newest step on what the device holds at this moment, and nothing of any cache."""
    folder.mkdir()
    shutil.copy(disk, folder / "image")
    with mounted(folder / "disk", *IMAGE_OPTIONS, str(folder / "image")) as place:
        return newest(Archive(LocalStore(place / "store")))[0]


class Photographed:
    """A store on a disk of which a copy is made before each change and after it: what would be left if power went then."""

    def __init__(self, store: Store, disk: Path, folder: Path) -> None:
        self.url = store.url
        self.copies: list[Path] = []
        self._store = store
        self._disk = disk
        self._folder = folder
        self._lock = threading.Lock()

    def put(self, path: str, parts: Iterable[memoryview]) -> None:
        self._change(lambda: self._store.put(path, parts))

    def create(self, path: str, data: bytes) -> bool:
        return self._change(lambda: self._store.create(path, data))

    def remove(self, path: str) -> None:
        self._change(lambda: self._store.remove(path))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _change(self, change: Callable[[], Any]) -> Any:
        with self._lock:
            self._photograph()
            found = change()
            self._photograph()
            return found

    def _photograph(self) -> None:
        self.copies.append(self._folder / f"copy-{len(self.copies)}")
        shutil.copy(self._disk, self.copies[-1])


def test_when_power_goes_at_any_change_the_last_save_that_returned_loads_and_nothing_that_counts_is_harmed(
    tmp_path: Path,
) -> None:
    disk = image(tmp_path / "image", 16 << 20)
    with mounted(tmp_path / "disk", *IMAGE_OPTIONS, str(disk)) as place:
        store = Photographed(LocalStore(place / "store"), disk, tmp_path)
        archive = Archive(store)
        returned: list[tuple[int, int | None]] = []
        for step in (1, 2):
            archive.write(*drafted(TREE, step, shard_bytes=8))
            returned.append((len(store.copies), step))
        archive.prune(Retention(last=1))
    assert len(store.copies) > returned[-1][0], "something was removed"
    for number, copy in enumerate(store.copies):
        last = max((step for count, step in [(0, None), *returned] if count <= number + 1), key=lambda step: step or 0)
        with mounted(tmp_path / f"disk-{number}", *IMAGE_OPTIONS, str(copy)) as place:
            left = Archive(LocalStore(place / "store"))
            step, state, damages = newest(left)
            assert (step, damages) == (last, []), number
            assert step is None or same(state, TREE)
            assert not any(left.verify(pointer) for pointer in left.pointers()[0]), number


class Saver:
    """A process that runs saver.py, and begins when it is told to."""

    def __init__(self, folder: Path, *arguments: object) -> None:
        command = [sys.executable, str(Path(__file__).with_name("saver.py")), str(folder), *map(str, arguments)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def begin(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def end(self) -> tuple[list[str], int]:
        text, _ = self._process.communicate("\n", timeout=60)
        return text.splitlines(), self._process.returncode


# Saves whose copy is still being made


class Arriving:
    """A state that comes into its arena once both who read it wait for that; until then, something else lies there."""

    def __init__(self, tree: Any, step: int) -> None:
        self.draft, self._sound = drafted(tree, step, shard_bytes=8)
        self.arena = memoryview(bytearray(b"?" * len(self._sound)))
        self._both = {stop: threading.Barrier(2, timeout=60) for _, stop in self.draft.extents}
        self._lock = threading.Lock()

    def reach(self, size_bytes: int) -> None:
        self._both[size_bytes].wait()
        with self._lock:
            start = next(start for start, stop in self.draft.extents if stop == size_bytes)
            self.arena[start:size_bytes] = self._sound[start:size_bytes]


def test_nothing_is_read_before_it_is_there() -> None:
    archive, arriving = Archive(Shelf()), Arriving(TREE, step=1)
    pointer = archive.write(arriving.draft, arriving.arena, arriving.reach)
    assert same(load(archive, pointer), TREE) and is_clean(archive)


@pytest.mark.parametrize("whole_shards", range(len(drafted(TREE, shard_bytes=8)[0].order)))
def test_a_copy_that_turns_out_to_be_void_leaves_nothing(whole_shards: int) -> None:
    are_written = [threading.Event() for _ in range(whole_shards)]

    class Told(Shelf):
        def put(self, path: str, parts: Iterable[memoryview]) -> None:
            super().put(path, parts)
            if path.startswith("step-000000000002"):
                are_written[int(path[-17:-12])].set()

    archive, arriving = Archive(Told()), Arriving(TREE, step=2)
    save(archive.store, 1, tree=TREE)
    first_void = arriving.draft.extents[whole_shards][1]

    def reach(size_bytes: int) -> None:
        if size_bytes >= first_void:
            assert all(event.wait(60) for event in are_written)
            raise StateError("weight has changed")
        arriving.reach(size_bytes)

    with pytest.raises(StateError, match="weight has changed"):
        archive.write(arriving.draft, arriving.arena, reach)
    assert is_clean(archive) and newest(archive)[0] == 1


# Saves that are refused


def test_a_store_that_is_full_gets_its_room_back() -> None:
    shelf = Shelf()
    save(shelf, 1)
    full = Refusing(shelf.files, room_bytes=15_000)
    with pytest.raises(InfraError, match="no room"):
        save(full, 2, tree=TREE, shard_bytes=8)
    assert full.files == shelf.files


def test_whatever_a_store_raises_it_gets_its_room_back() -> None:
    """Its library raises what it likes, and the save is tried again."""

    class Broken(Shelf):
        def put(self, path: str, parts: Iterable[memoryview]) -> None:
            super().put(path, parts)
            if path.endswith("00001.safetensors"):
                raise KeyError("whatever")

    shelf = Broken()
    with pytest.raises(KeyError):
        save(shelf, 2, tree=TREE, shard_bytes=8)
    assert shelf.files == {}


def test_an_answer_that_got_lost_costs_no_second_copy() -> None:
    """The pointer was created, and nobody heard of it: the same save again finds itself complete."""

    def lose(_path: str) -> None:
        raise InfraError("the connection broke")

    shelf = Shelf()
    save(shelf, 1)
    made = drafted(small(2), step=2)
    with pytest.raises(InfraError):
        Archive(Interposed(shelf, after=lose)).write(*made)
    before = dict(shelf.files)
    again = Archive(shelf).write(*made)
    assert again.number == 2 and shelf.files == before and is_clean(Archive(shelf))
    with pytest.raises(Fenced, match="step 2 of term 1 does not follow step 2"):
        save(shelf, 2, tree=small(3))


def test_a_save_under_an_older_term_is_fenced_and_leaves_nothing() -> None:
    shelf = Shelf()
    save(shelf, 10, term=1)
    save(shelf, 5, term=2)
    before = dict(shelf.files)
    with pytest.raises(Fenced, match=r"memory:/shelf: step 11 of term 1 is fenced: term 2 has saved step 5 since"):
        save(shelf, 11, term=1)
    with pytest.raises(Fenced, match="step 5 of term 2 does not follow step 5"):
        save(shelf, 5, term=2, tree=small(0))
    assert shelf.files == before and newest(Archive(shelf))[0] == 5


def test_a_damaged_pointer_is_stepped_over_and_stays() -> None:
    shelf = Shelf()
    save(shelf, 1)
    shelf.files["pointers/000000000002.json"] = b""
    assert save(shelf, 2).number == 3
    step, _, damages = newest(Archive(shelf))
    assert step == 2 and len(damages) == 1 and "000000000002.json is damaged: its 0 bytes" in damages[0]
    assert Archive(shelf).newest_term() == 1


def test_whoever_starts_has_a_term_above_all_that_saved_here_or_tried() -> None:
    shelf = Shelf()
    assert Archive(shelf).newest_term() == 0
    save(shelf, 1, term=3)
    assert Archive(shelf).newest_term() == 3
    with pytest.raises(Dead):
        save(Mortal(shelf, 1, after=True), 2, term=4)
    assert Archive(shelf).newest_term() == 4


# Races


def race(store: Store, *saves: tuple[int, int, Any]) -> list[Pointer | Fenced]:
    """Saves at once, all of which come to create the same pointer at the same moment."""
    meeting = threading.Barrier(len(saves))
    met = threading.local()

    def meet(_path: str) -> None:
        if not getattr(met, "has", False):
            met.has = True
            meeting.wait(30)

    found: list[Pointer | Fenced | None] = [None] * len(saves)

    def run(number: int, step: int, term: int, tree: Any) -> None:
        try:
            found[number] = save(Interposed(store, before=meet), step, term, tree)
        except Fenced as error:
            found[number] = error

    threads = [threading.Thread(target=run, args=(number, *each)) for number, each in enumerate(saves)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert all(each is not None for each in found)
    return [each for each in found if each is not None]


@pytest.mark.parametrize("attempt", range(5))
def test_of_writers_that_race_for_a_step_exactly_one_wins(tmp_path: Path, attempt: int) -> None:
    store = LocalStore(tmp_path)
    found = race(store, *((1, 1, small(number)) for number in range(4)))
    assert sorted(type(each).__name__ for each in found) == ["Fenced", "Fenced", "Fenced", "Pointer"]
    (won,) = (number for number, each in enumerate(found) if isinstance(each, Pointer))
    archive = Archive(store)
    assert same(newest(archive)[1], small(won)) and is_clean(archive), "the losers left nothing"


def test_writers_of_one_and_the_same_state_all_have_their_save() -> None:
    shelf = Shelf()
    found = race(shelf, *((1, 1, small(0)) for _ in range(4)))
    assert all(each == found[0] for each in found) and is_clean(Archive(shelf))


@pytest.mark.parametrize("attempt", range(5))
def test_of_writers_under_two_terms_the_newer_one_ends_as_the_latest(tmp_path: Path, attempt: int) -> None:
    store = LocalStore(tmp_path)
    old, new = race(store, (9, 1, small(9)), (4, 2, small(4)))
    assert isinstance(new, Pointer) and Archive(store).pointers()[0][0] == new
    assert (isinstance(old, Pointer) and (old.number, new.number) == (1, 2)) or "is fenced: term 2" in str(old)
    assert is_clean(Archive(store))


@pytest.mark.process
def test_processes_that_race_take_turns_or_are_told(tmp_path: Path) -> None:
    savers = [Saver(tmp_path, term, 1, 12) for term in (1, 1, 2)]
    for saver in savers:
        saver.begin()
    told = [saver.end() for saver in savers]
    assert [code for _, code in told] == [0, 0, 0]
    archive = Archive(LocalStore(tmp_path))
    pointers, damages = archive.pointers()
    order = [(pointer.term, pointer.step) for pointer in reversed(pointers)]
    assert order == sorted(set(order)) and order[-1] == (2, 12) and not damages
    assert [pointer.number for pointer in pointers] == list(range(len(pointers), 0, -1))
    saved = {int(line.split()[2]) for lines, _ in told for line in lines if line.startswith("saved")}
    assert saved == {pointer.number for pointer in pointers}
    fenced = [line for lines, _ in told[:2] for line in lines if line.startswith("fenced")]
    assert fenced and all("is fenced: term 2 has saved" in line or "does not follow" in line for line in fenced)
    assert is_clean(archive)


def test_a_writer_that_stood_still_while_retention_went_on_is_told_and_leaves_nothing() -> None:
    """The number that it takes is free again, and below the latest."""
    shelf = Shelf()
    save(shelf, 1, term=1)

    def stand_still(path: str) -> None:
        assert path.endswith("2.json")
        save(shelf, 1, term=2)
        save(shelf, 2, term=2)
        assert len(Archive(shelf).prune(Retention(last=1))) == 2

    with pytest.raises(Fenced, match="term 2 has saved step 2"):
        save(Interposed(shelf, before=stand_still), 2, term=1)
    assert is_clean(Archive(shelf)) and [p.number for p in Archive(shelf).pointers()[0]] == [3]


def test_a_listing_that_lags_behind_does_not_stop_a_save() -> None:
    shelf = Shelf()
    save(shelf, 1)
    save(shelf, 2)
    lagging = Interposed(shelf, names=lambda names: [name for name in names if name != "000000000002.json"])
    assert save(lagging, 3).number == 3 and [p.step for p in Archive(shelf).pointers()[0]] == [3, 2, 1]


# Removing


def aged(steps: int) -> Shelf:
    shelf = Shelf()
    for step in range(1, steps + 1):
        save(shelf, step, tree=TREE, shard_bytes=8)
    return shelf


def test_retention_removes_what_it_may_and_whole() -> None:
    archive = Archive(aged(6))
    assert archive.prune(Retention()) == ()
    assert [pointer.step for pointer in archive.prune(Retention(last=2, every=3))] == [1, 2, 4]
    assert [pointer.step for pointer in archive.pointers()[0]] == [6, 5, 3] and is_clean(archive)
    assert [pointer.step for pointer in archive.prune(Retention(total_bytes=1))] == [3, 5]
    assert [pointer.step for pointer in archive.pointers()[0]] == [6] and is_clean(archive)


def test_without_a_rule_nothing_is_read_to_remove_nothing() -> None:
    class Unreadable(Shelf):
        def read(self, path: str) -> bytes | None:
            raise AssertionError(path)

    assert Archive(Unreadable(aged(2).files)).prune(Retention()) == ()


def test_whoever_dies_while_removing_leaves_whole_checkpoints_and_what_sweep_removes() -> None:
    whole = aged(4).files
    for at, after in ((at, after) for at in itertools.count(1) for after in (False, True)):
        shelf = Shelf(whole)
        mortal = Mortal(shelf, at, after)
        try:
            Archive(mortal).prune(Retention(last=1))
        except Dead:
            pass
        else:
            break
        archive = Archive(shelf)
        step, _, damages = newest(archive)
        assert (step, damages) == (4, [])
        assert all(archive.verify(pointer) == [] for pointer in archive.pointers()[0])
        archive.prune(Retention(last=1))
        archive.sweep()
        assert is_clean(archive) and len(folders(shelf)) == 1
    assert at == 7, "three pointers, three folders"


def test_what_cannot_be_removed_keeps_no_other_and_is_told() -> None:
    whole = aged(5)
    pointers, _ = Archive(whole).pointers()
    shelf = Clinging(whole.files, ["pointers/000000000001.json", pointers[3].folder])  # of steps 1 and 2
    archive = Archive(shelf)
    for _ in range(2):
        with pytest.raises(InfraError, match=r"000000000001\.json is locked"):
            archive.prune(Retention(last=1))
        assert [pointer.step for pointer in archive.pointers()[0]] == [5, 1]
        assert all(archive.verify(pointer) == [] for pointer in archive.pointers()[0])
        assert sorted(folders(shelf)) == sorted(pointers[number].folder for number in (0, 3, 4))
    shelf.held.clear()
    archive.prune(Retention(last=1))
    archive.sweep()
    assert is_clean(archive) and len(folders(shelf)) == 1


def test_nothing_is_removed_in_favour_of_what_is_not_there() -> None:
    """The newest has lost a file: with it alone, nothing would be left to load."""
    shelf = aged(3)
    archive = Archive(shelf)
    lost = archive.pointers()[0][0]
    del shelf.files[f"{lost.folder}/shard-00001.safetensors"]
    assert [pointer.step for pointer in archive.prune(Retention(last=1))] == [1]
    assert newest(archive)[0] == 2
    assert archive.prune(Retention(last=1)) == () and newest(archive)[0] == 2


def test_sweep_removes_leftovers_and_nothing_else() -> None:
    shelf = Shelf()
    for step, term in ((5, 1), (9, 1), (3, 2), (6, 2), (2, 3)):
        with pytest.raises(Dead):
            save(Mortal(shelf, 1, after=True), step, term)
    shelf.files["step-000000000001-1-notours/readme"] = shelf.files["notes/readme"] = b"the user's"
    started = folders(shelf)
    archive = Archive(shelf)
    assert archive.sweep() == (), "nothing is complete yet"
    latest = save(shelf, 4, term=2)
    dead = archive.sweep()
    assert sorted(folder.split("-", 1)[1][:14] for folder in dead) == ["000000000003-2", "000000000005-1", "000000000009-1"]
    assert folders(shelf) == sorted({*started, latest.folder} - {*dead})


def test_a_save_that_has_no_room_takes_that_of_the_dead_ahead_of_the_latest() -> None:
    shelf = Shelf()
    for step, term in ((9, 1), (6, 2), (7, 2), (8, 2), (5, 3)):
        with pytest.raises(Dead):
            save(Mortal(shelf, 1, after=True), step, term)
    latest = save(shelf, 4, term=2)
    dead = Archive(shelf).sweep((2, 7))  # its own step under its own term: of the writer before
    assert sorted(folder.split("-", 1)[1][:14] for folder in dead) == ["000000000006-2", "000000000007-2", "000000000009-1"]
    assert latest.folder in folders(shelf) and len(folders(shelf)) == 3
    del shelf.files["pointers/000000000001.json"]
    assert len(Archive(shelf).sweep((3, 5))) == 3, "also where nothing is complete yet"


@pytest.mark.parametrize("at", range(1, save_changes()))
def test_a_writer_that_stood_still_while_its_files_went_is_told_and_leaves_nothing(at: int) -> None:
    """Another job began, and had no room: what is of an older term and has no pointer is of the dead."""

    class Napping(Shelf):
        puts = 0

        def put(self, path: str, parts: Iterable[memoryview]) -> None:
            super().put(path, parts)
            with self._lock:
                self.puts += 1
                is_asleep = self.puts == at
            if is_asleep:
                Archive(self).sweep((2, 1))

    shelf = Napping()
    shelf.files = aged(1).files
    before = dict(shelf.files)
    with pytest.raises(Fenced, match="was removed: another process saves there now"):
        save(shelf, 2, tree=TREE, shard_bytes=8)
    assert shelf.files == before


def test_sweep_removes_nothing_while_a_pointer_is_damaged() -> None:
    """Its checkpoint has no pointer that can be read, and may be whole."""
    shelf = aged(3)
    shelf.files["pointers/000000000002.json"] = shelf.files["pointers/000000000002.json"][:-1]
    assert Archive(shelf).sweep() == ()
    shelf.remove("pointers/000000000002.json")
    assert len(Archive(shelf).sweep()) == 1


def test_the_latest_can_be_read_while_others_are_saved_and_removed(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    save(store, 1, tree=small(1))
    is_over = threading.Event()
    wrong: list[object] = []

    def restore() -> None:
        while not is_over.is_set():
            archive = Archive(LocalStore(tmp_path))
            pointers, damages = archive.pointers()
            wrong.extend(damages)
            try:
                if not same(load(archive, pointers[0]), small(pointers[0].step)):
                    wrong.append(pointers[0])
            except StateError as error:
                if archive.pointers()[0][0] == pointers[0]:  # else it has been removed meanwhile
                    wrong.append(error)

    reader = threading.Thread(target=restore)
    reader.start()
    for step in range(2, 21):
        save(store, step, tree=small(step))
        Archive(store).prune(Retention(last=2))
    is_over.set()
    reader.join(60)
    assert not wrong and is_clean(Archive(store))


def test_saves_races_and_retention_on_every_kind_of_store(store: Store) -> None:
    won, lost = sorted(race(store, (1, 1, small(1)), (1, 1, small(2))), key=lambda each: isinstance(each, Fenced))
    assert isinstance(won, Pointer) and "does not follow step 1" in str(lost)
    archive = Archive(store)
    for step in (2, 3):
        save(store, step, tree=TREE, shard_bytes=8)
    with pytest.raises(Dead):
        save(Mortal(store, 3), 4, tree=TREE, shard_bytes=8)
    save(store, 4, tree=TREE, shard_bytes=8)
    assert len(archive.sweep()) == 1
    assert [pointer.step for pointer in archive.prune(Retention(last=2))] == [1, 2]
    step, state, damages = newest(archive)
    assert (step, damages) == (4, []) and same(state, TREE) and is_clean(archive)
