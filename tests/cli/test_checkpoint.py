"""`regrow checkpoint`: what it says, how it ends, and what it writes opens elsewhere."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import torch.distributed.checkpoint as dcp
from command import regrow
from safetensors.torch import load_file
from shelf import Chained, Dead, Mortal, same, save

from regrow.cli.asked_save import SaveWatch
from regrow.cli.gauge import Gauge, size
from regrow.cli.run_dir import JobFile, RunDir
from regrow.core.checkpoint import Pointer
from regrow.state.local_store import LocalStore
from regrow.state.safetensors import header_bytes, parse

PAGE = Path(__file__).parents[2] / "docs" / "checkpoints.md"


def state(step: int) -> dict[str, Any]:
    torch.manual_seed(step)
    model = torch.nn.Linear(4, 3, dtype=torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 4, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.arange(3).numpy()}


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    found = LocalStore(tmp_path / "run1")
    for step in (100, 200, 300):
        save(found, step, tree=state(step))
    return found


def latest(store: LocalStore) -> Pointer:
    return msgspec.json.decode(store.read("pointers/000000000003.json") or b"", type=Pointer)


def damage(store: LocalStore) -> Path:
    """A flipped bit in the latest's tensors."""
    path = Path(store.url) / latest(store).folder / "shard-00000.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    return path


def as_json(*arguments: object, cwd: Path, code: int = 0) -> Any:
    done = regrow("checkpoint", *arguments, "--json", cwd=cwd)
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout)


# What it says


def test_list_tells_each_newest_first(tmp_path: Path, store: LocalStore) -> None:
    done = regrow("checkpoint", "list", "run1", cwd=tmp_path)
    assert done.returncode == 0 and done.stderr == ""
    title, *lines = done.stdout.splitlines()
    assert title.split() == ["step", "term", "made", "size", "state"]
    assert [re.sub(r"\d{4}-\S+ \S+", "WHEN", line).split() for line in lines] == [
        [step, "1", "WHEN", "4.22", "kB", "whole"] for step in ("300", "200", "100")
    ]
    found = as_json("list", "run1", cwd=tmp_path)
    assert [row["step"] for row in found["checkpoints"]] == [300, 200, 100] and found["damages"] == []


def test_deltas_are_told_checked_exported_and_their_chains_stay(tmp_path: Path) -> None:
    store, saver = LocalStore(tmp_path / "run1"), Chained(2)
    pointers = [saver.save(store, step, {**state(1), "x": torch.arange(9000) + step}) for step in (1, 2, 3)]
    lines = regrow("checkpoint", "list", "run1", cwd=tmp_path).stdout.splitlines()
    assert lines[1].endswith(f"whole, delta 2 on {pointers[1].folder}") and lines[3].endswith("whole")
    rows = as_json("list", "run1", cwd=tmp_path)["checkpoints"]
    assert [(row["depth"], row["base"]) for row in rows] == [(2, pointers[1].folder), (1, pointers[0].folder), (None, None)]
    assert rows[0]["ratio"] > 1.1 and rows[2]["ratio"] is None
    shown = regrow("checkpoint", "show", "run1", cwd=tmp_path).stdout
    assert re.search(rf"^delta 2, \d+\.\d\d times smaller .* on {pointers[1].folder}$", shown, re.MULTILINE)
    assert regrow("checkpoint", "verify", "run1", cwd=tmp_path).returncode == 0
    assert regrow("checkpoint", "export", "run1", "--to", "a.pt", cwd=tmp_path).returncode == 0
    assert same(torch.load(tmp_path / "a.pt", weights_only=True)["x"], torch.arange(9000) + 3)
    assert as_json("prune", "run1", "--last", 1, cwd=tmp_path)["checkpoints"] == []
    (tmp_path / "run1" / pointers[0].folder / "manifest.json").unlink()
    for command in ("list", "verify"):
        rows = as_json(command, "run1", cwd=tmp_path, code=1)["checkpoints"]
        assert [row["state"] for row in rows] == ["damaged"] * 3
        assert f"{pointers[0].folder}/manifest.json is missing, although" in rows[0]["problems"][0]


def test_show_tells_what_is_in_one(tmp_path: Path, store: LocalStore) -> None:
    text = regrow("checkpoint", "show", "run1", "--step", 200, "--tensors", cwd=tmp_path).stdout
    assert text.startswith("step 200, term 1: step-000000000200-1-")
    assert "\nmodel: tensors 2, 30 B\noptimizer: tensors 6, " in text and "\nrng: tensors 1, 24 B\n" in text
    assert "\n  model.weight  bfloat16[3, 4]  shard-00000.safetensors\n" in text
    found = as_json("show", "run1", "--tensors", cwd=tmp_path)
    assert found["checkpoints"][0]["step"] == 300 and len(found["leaves"]) == 9


def test_verify_reads_all_or_one(tmp_path: Path, store: LocalStore) -> None:
    done = regrow("checkpoint", "verify", "run1", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "".join(f"step {s}: whole, 4.22 kB\n" for s in (300, 200, 100)))
    path = damage(store)
    done = regrow("checkpoint", "verify", "run1", cwd=tmp_path)
    assert done.returncode == 1 and done.stdout.startswith("step 300: damaged, 4.22 kB\nstep 200: whole")
    assert done.stderr.startswith(f"damage: {path} is damaged between byte 0 and byte 4")
    assert regrow("checkpoint", "verify", "run1", "--step", 200, cwd=tmp_path).returncode == 0


def test_the_json_is_what_the_document_says(tmp_path: Path, store: LocalStore) -> None:
    told = set(re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE))
    listed = as_json("list", "run1", cwd=tmp_path)
    shown = as_json("show", "run1", "--tensors", cwd=tmp_path)
    verified = as_json("verify", "run1", cwd=tmp_path)
    exported = as_json("export", "run1", "--to", "x.pt", cwd=tmp_path)
    pruned = as_json("prune", "run1", "--last", 1, cwd=tmp_path)
    of_run = as_json("list", job_of(tmp_path, store.url), cwd=tmp_path)
    now = SaveWatch((store.url,), 300).told("run", "")
    asked = [json.loads(msgspec.json.encode(part)) for part in (now, *now.places)]
    found = [listed, shown, verified, exported, pruned, of_run, *asked, *listed["checkpoints"]]
    assert {report["format"] for report in found[:7]} == {1}
    assert {key for report in found for key in report} == told


# Of a run directory


def job_of(folder: Path, *urls: str) -> Path:
    """A run directory whose job saves there, nearest first."""
    run = folder / "runs" / f"of-{len(urls)}"
    shared = {"command": ("train.py",), "cwd": "/", "replicas": ("r0",), "lanes": 2, "host": "h", "pid": 1, "born": 0}
    RunDir(run).create(JobFile(job="j", checkpoints=urls, **shared))  # type: ignore[arg-type]
    return run


@pytest.fixture
def far(tmp_path: Path) -> LocalStore:
    """A place that has step 300 too, and 400 besides."""
    found = LocalStore(tmp_path / "far")
    for step in (300, 400):
        save(found, step, tree=state(step))
    return found


def test_list_and_verify_go_through_all_places_of_a_run(tmp_path: Path, store: LocalStore, far: LocalStore) -> None:
    run = job_of(tmp_path, store.url, far.url, str(tmp_path / "nothing-yet"))
    done = regrow("checkpoint", "list", run, cwd=tmp_path)
    heads = " ".join(line.split()[0] for line in done.stdout.splitlines())
    assert done.returncode == 0
    assert heads == f"{store.url}: step 300 200 100 {far.url}: step 400 300 {tmp_path}/nothing-yet: no"
    found = as_json("list", run, cwd=tmp_path)
    assert found["run"] == str(run)
    assert [[row["step"] for row in place["checkpoints"]] for place in found["places"]] == [[300, 200, 100], [400, 300], []]
    damage(store)
    done = regrow("checkpoint", "verify", run, "--step", 300, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout == f"step 300 at {store.url}: damaged, 4.22 kB\nstep 300 at {far.url}: whole, 4.22 kB\n"


def test_show_and_export_take_the_newest_from_the_nearest_place(tmp_path: Path, store: LocalStore, far: LocalStore) -> None:
    run = job_of(tmp_path, store.url, far.url)
    assert as_json("show", run, cwd=tmp_path)["checkpoints"][0]["step"] == 400
    assert as_json("show", run, "--step", 300, cwd=tmp_path)["url"] == store.url
    assert as_json("export", run, "--to", "a.pt", "--step", 300, cwd=tmp_path)["url"] == store.url
    path = damage(store)
    found = as_json("export", run, "--to", "b.pt", "--step", 300, cwd=tmp_path, code=1)
    assert found["url"] == far.url and str(path) in found["passed_over"][0]
    done = regrow("checkpoint", "show", run, "--step", 7, cwd=tmp_path)
    assert done.returncode == 2
    assert f"of step 7 at {store.url} or {far.url}, there are those of 400, 300, 200, 100" in done.stderr


def test_prune_goes_through_all_places_of_a_run(tmp_path: Path, store: LocalStore, far: LocalStore) -> None:
    done = regrow("checkpoint", "prune", job_of(tmp_path, store.url, far.url), "--last", 1, cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        f"removed: step 100 at {store.url}, 4.22 kB",
        f"removed: step 200 at {store.url}, 4.22 kB",
        f"kept at {store.url}: 1",
        f"removed: step 300 at {far.url}, 4.22 kB",
        f"kept at {far.url}: 1",
    ]


def test_a_place_that_cannot_be_reached_hides_no_other(tmp_path: Path, store: LocalStore, far: LocalStore) -> None:
    (Path(far.url) / "pointers" / "000000000009.json").mkdir()
    run = job_of(tmp_path, far.url, store.url)
    for command in ("list", "verify", "show", "prune"):
        found = as_json(command, run, cwd=tmp_path, code=4)
        (*_, last) = found.get("places", [found])
        assert last["url"] == store.url and last["unreachable"] == ""
    done = regrow("checkpoint", "list", run, cwd=tmp_path)
    assert "cannot be reached: " in done.stderr and "000000000009.json" in done.stderr and "300" in done.stdout
    found = as_json("export", run, "--to", "x.pt", cwd=tmp_path, code=4)
    assert found["step"] == 300 and "000000000009.json" in found["passed_over"][0]
    done = regrow("checkpoint", "show", run, "--step", 400, cwd=tmp_path)
    assert done.returncode == 4, "it may be where nobody could look"


def test_a_run_without_checkpoints_says_why(tmp_path: Path) -> None:
    done = regrow("checkpoint", "list", job_of(tmp_path), cwd=tmp_path)
    assert done.returncode == 2 and "it was started without --checkpoint URL" in done.stderr
    done = regrow("checkpoint", "list", job_of(tmp_path, str(tmp_path / "none")), cwd=tmp_path)
    assert done.returncode == 2 and f"has no checkpoint yet at {tmp_path}/none" in done.stderr


# How it ends


def test_what_is_damaged_is_exit_code_1(tmp_path: Path, store: LocalStore) -> None:
    manifest = Path(store.url) / latest(store).folder / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:-1])
    done = regrow("checkpoint", "list", "run1", cwd=tmp_path)
    assert done.returncode == 1 and "damaged" in done.stdout.splitlines()[1]
    assert done.stderr.startswith(f"damage: {manifest} is damaged: its ")
    (Path(store.url) / "pointers" / "000000000003.json").write_bytes(b"{}")
    found = as_json("show", "run1", cwd=tmp_path, code=1)
    assert found["checkpoints"][0]["step"] == 200 and "000000000003.json is damaged" in found["damages"][0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["list", "nowhere"], "nowhere: look at the address"),
        (["show", "run1", "--step", "7"], "no checkpoint of step 7 at {store}, there are those of 300, 200, 100"),
        (["export", "run1"], "0 of --to, --dcp and --safetensors were given: give one"),
        (["export", "run1", "--to", "a.pt", "--dcp", "b"], "2 of --to, --dcp and --safetensors were given"),
        (["export", "run1", "--to", "run1"], "run1 exists: choose another place"),
        (["export", "run1", "--safetensors", "m", "--object", "optimizer"], "optimizer is not a model in this checkpoint"),
        (["prune", "run1", "--within", "much"], "--within much: write a number of bytes"),
        (["prune", "run1", "--last", "0"], "0 is not in the range"),
        (["list", "nonsense://x"], "nonsense://"),
    ],
)
def test_wrong_usage_is_exit_code_2(tmp_path: Path, store: LocalStore, arguments: list[str], words: str) -> None:
    done = regrow("checkpoint", *arguments, cwd=tmp_path)
    assert done.returncode == 2 and words.format(store=store.url) in done.stderr and "Traceback" not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run1"], "nothing was begun"


def test_a_store_that_refuses_is_exit_code_4(tmp_path: Path, store: LocalStore) -> None:
    (Path(store.url) / "pointers" / "000000000009.json").mkdir()
    done = regrow("checkpoint", "list", "run1", cwd=tmp_path)
    assert done.returncode == 4 and "000000000009.json cannot be used" in done.stderr
    done = regrow("checkpoint", "export", store.url, "--to", "/proc/x.pt", cwd=tmp_path)
    assert done.returncode == 4


def test_a_newer_version_is_told_and_is_no_damage(tmp_path: Path, store: LocalStore) -> None:
    import xxhash

    from regrow.state.pointers import sealed

    pointer = latest(store)
    folder = Path(store.url)
    manifest = msgspec.json.decode((folder / pointer.folder / "manifest.json").read_bytes())
    data = msgspec.json.encode({**manifest, "version": 3, "regrow": "0.9.0"})
    (folder / pointer.folder / "manifest.json").write_bytes(data)
    pointer = sealed(msgspec.structs.replace(pointer, manifest=xxhash.xxh3_128_hexdigest(data)))
    (folder / "pointers" / "000000000003.json").write_bytes(msgspec.json.encode(pointer))
    done = regrow("checkpoint", "list", "run1", cwd=tmp_path)
    assert done.returncode == 0 and "newer" in done.stdout and "install regrow 0.9.0 or later" in done.stderr
    done = regrow("checkpoint", "export", "run1", "--to", "x.pt", cwd=tmp_path)
    assert done.returncode == 2 and "install regrow 0.9.0 or later" in done.stderr, "no older one in its place"
    assert regrow("checkpoint", "export", "run1", "--to", "x.pt", "--step", 200, cwd=tmp_path).returncode == 0


# Export


def test_a_torch_file_holds_everything(tmp_path: Path, store: LocalStore) -> None:
    done = regrow("checkpoint", "export", "run1", "--to", "x.pt", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"step 300 of {store.url} is in x.pt\n")
    wanted = state(300)
    wanted["rng"] = torch.from_numpy(wanted["rng"])
    assert same({**torch.load(tmp_path / "x.pt", weights_only=True)}, {**wanted, "model": dict(wanted["model"])})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run1", "x.pt"]


def test_a_distributed_checkpoint_holds_everything(tmp_path: Path, store: LocalStore) -> None:
    assert regrow("checkpoint", "export", "run1", "--dcp", "x", "--step", 100, cwd=tmp_path).returncode == 0
    found, wanted = state(5), state(100)
    assert not same(dict(found["model"]), dict(wanted["model"]))
    found["rng"] = torch.zeros(3, dtype=torch.int64)
    dcp.state_dict_loader.load(found, checkpoint_id=tmp_path / "x")
    assert same(dict(found["model"]), dict(wanted["model"])) and same(found["rng"], torch.arange(3))
    for number, entry in wanted["optimizer"]["state"].items():
        assert same(found["optimizer"]["state"][number], entry)


def test_a_safetensors_file_holds_the_model_under_its_own_names(tmp_path: Path, store: LocalStore) -> None:
    assert regrow("checkpoint", "export", "run1", "--safetensors", "deep/m.safetensors", cwd=tmp_path).returncode == 0
    found = load_file(tmp_path / "deep" / "m.safetensors")
    wanted = dict(state(300)["model"])
    assert found.keys() == wanted.keys() and all(same(found[name], wanted[name]) for name in wanted)
    torch.nn.Linear(4, 3, dtype=torch.bfloat16).load_state_dict(found)


def test_of_several_models_the_one_asked_for_is_written(tmp_path: Path) -> None:
    tree = {name: {"w": torch.ones(2), "step": torch.tensor(1)} for name in ("student", "teacher")}
    save(
        LocalStore(tmp_path / "run"),
        1,
        tree={**tree, "teacher": {"mask": torch.ones(3) > 0, "v": torch.zeros(3, dtype=torch.int64), **tree["teacher"]}},
    )
    done = regrow("checkpoint", "export", "run", "--safetensors", "m", cwd=tmp_path)
    assert done.returncode == 2 and "name one with --object: student, teacher" in done.stderr
    done = regrow("checkpoint", "export", "run", "--safetensors", "m", "--object", "teacher", cwd=tmp_path)
    assert done.returncode == 0 and sorted(load_file(tmp_path / "m")) == ["mask", "step", "v", "w"]
    data = (tmp_path / "m").read_bytes()
    starts = {name: entry.data_offsets[0] for name, entry in parse(data[: header_bytes(data)]).items()}
    assert starts["v"] % 8 == starts["step"] % 8 == starts["w"] % 4 == 0, "aligned, whatever comes first in the state"


def test_damaged_ones_are_passed_over_and_told(tmp_path: Path, store: LocalStore) -> None:
    path = damage(store)
    done = regrow("checkpoint", "export", "run1", "--to", "x.pt", cwd=tmp_path)
    assert done.returncode == 1 and done.stdout.startswith("step 200 of ")
    assert done.stderr.startswith(f"passed over: {path} is damaged between")
    assert torch.load(tmp_path / "x.pt")["model"].keys() == {"weight", "bias"}
    done = regrow("checkpoint", "export", "run1", "--to", "y.pt", "--step", 300, cwd=tmp_path)
    assert done.returncode == 1 and "no checkpoint is whole" in done.stderr and not (tmp_path / "y.pt").exists()


# Prune


def test_prune_removes_what_it_says_and_a_dry_run_nothing(tmp_path: Path, store: LocalStore) -> None:
    with pytest.raises(Dead):
        save(Mortal(store, 1, after=True), 400)
    (left,) = [name for name in store.names() if name.startswith("step-000000000400")]
    save(store, 400, tree=state(400))
    done = regrow("checkpoint", "prune", "run1", "--last", 1, "--every", 200, "--dry-run", cwd=tmp_path)
    wanted = "".join(f"would be removed: step {step}, 4.22 kB\n" for step in (100, 300))
    wanted += f"would be removed: {left}, which was never completed\nkept: 2\n"
    assert (done.returncode, done.stdout) == (0, wanted)
    assert len(as_json("list", "run1", cwd=tmp_path)["checkpoints"]) == 4 and left in store.names()
    done = regrow("checkpoint", "prune", "run1", "--last", 1, "--every", 200, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, wanted.replace("would be removed", "removed"))
    assert [row["step"] for row in as_json("verify", "run1", cwd=tmp_path)["checkpoints"]] == [400, 200]
    assert len(store.names()) == 3
    pruned = as_json("prune", "run1", "--within", "4.3kB", cwd=tmp_path)
    assert [row["step"] for row in pruned["checkpoints"]] == [200] and pruned["leftovers"] == []


# Without torch, and on no terminal


def test_no_torch_but_for_export(tmp_path: Path, store: LocalStore) -> None:
    probe = """
import sys
from click.testing import CliRunner
from regrow.cli.main import main
commands = [[name, "--help"] for name in ("list", "show", "verify", "export", "prune", "now")]
commands += [["--help"], *([name, "run1"] for name in ("list", "show", "verify", "prune"))]
for command in commands:
    result = CliRunner().invoke(main, ["checkpoint", *command])
    assert result.exit_code == 0, result.output
    assert "torch" not in sys.modules, command
result = CliRunner().invoke(main, ["checkpoint", "export", "run1", "--to", "x.pt"])
assert result.exit_code == 0 and "torch" in sys.modules, "the check can fail"
"""
    subprocess.run([sys.executable, "-c", probe], check=True, timeout=120, cwd=tmp_path)


def test_the_help_lists_the_exit_codes(tmp_path: Path) -> None:
    text = regrow("checkpoint", "--help", cwd=tmp_path).stdout
    assert re.findall(r"^    (\d+) {2,}\S", text, re.MULTILINE) == ["0", "1", "2", "4"]
    commands = re.findall(r"^  (\w+)  ", text.partition("Commands:")[2], re.MULTILINE)
    assert commands == ["advise", "export", "list", "now", "prune", "show", "verify"]


def test_long_work_tells_how_far_it_is_in_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with Gauge("reading", 10**9, silent_s=0.0) as gauge:
        gauge.add(5 * 10**8)
        gauge.add(1)
    with Gauge("reading", 10**9) as gauge:
        gauge.add(10**9)
    told = capsys.readouterr()
    assert re.fullmatch(r"reading: 500 MB of 1 GB, \S+ \w+/s\n", told.err) and told.out == "", told.err


def test_sizes_as_people_say_them() -> None:
    told = [size(number) for number in (0, 999, 1000, 4284, 99_960, 512_300_000, 999_600_000, 10**12, 10**16)]
    assert told == ["0 B", "999 B", "1 kB", "4.28 kB", "100 kB", "512 MB", "1 GB", "1 TB", "10000 TB"]
