"""The documents speak of what is there: links, names of tests and files, flags, words, and a script that runs."""

import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import click
import pytest

import regrow
from regrow.cli.check import check
from regrow.cli.checkpoint import checkpoint
from regrow.cli.coordinator import coordinator
from regrow.cli.neighbour import neighbour
from regrow.cli.run import run
from regrow.cli.soak import soak
from regrow.cli.status import status
from regrow.cli.why import why
from regrow.cli.wishes import leave, migrate, scale
from regrow.core import attendance, invariants, membership, messages

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
REGROW = str(Path(sys.executable).parent / "regrow")
DEADLINE_S = 120.0


def text(name: str) -> str:
    return (ROOT / name).read_text()


def anchors(page: Path) -> set[str]:
    """Headings as GitHub links to them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def rows(page: str) -> list[list[str]]:
    """The cells of every table row."""
    lines = [line for line in text(page).splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(there), f"{page.name} links to {target}, a heading that is not there"


def test_tests_named_in_the_documents_exist() -> None:
    written = {
        name for file in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"def (test_\w+)", file.read_text())
    }
    for page in PAGES:
        named = set(re.findall(r"`(test_\w+)`", page.read_text()))
        assert named <= written, f"{page.name} names {sorted(named - written)}"


def test_files_named_in_the_documents_exist() -> None:
    for page in PAGES:
        for name in re.findall(r"`((?:src|tests|examples|benchmarks|docs)/[\w./]+)", page.read_text()):
            assert (ROOT / name).exists(), f"{page.name} names {name}"


def test_every_source_file_is_on_the_map_once() -> None:
    listed = [cells[0].strip("`") for cells in rows("docs/map.md") if cells[0].startswith("`src/")]
    files = {str(file.relative_to(ROOT)) for file in (ROOT / "src" / "regrow").rglob("*.py")}
    assert sorted(files - set(listed)) == [], "not on the map"
    assert sorted(set(listed) - files) == [], "on the map, and not there"
    assert sorted(name for name, count in Counter(listed).items() if count > 1) == [], "on the map more than once"


def test_the_maps_rooms_are_those_that_import_linter_holds() -> None:
    drawn = text("docs/map.md").split("```")[1]
    layers = re.search(r"^layers = \[(.*?)\]", text("pyproject.toml"), re.DOTALL | re.MULTILINE)
    assert layers is not None
    held = [layer.replace("regrow.", "") for layer in re.findall(r'"(.+?)"', layers[1])]
    assert [re.split(r"\s{2,}", line)[0] for line in drawn.strip().splitlines()] == held


def test_the_readmes_flags_are_those_of_the_command() -> None:
    flags = {flag for p in run.params if isinstance(p, click.Option) and not p.hidden for flag in p.opts}
    listed = [cells[0].strip("`") for cells in rows("README.md") if cells[0].startswith("`--")]
    assert sorted(listed) == sorted(flags)
    others = (coordinator, neighbour, status, check, why, soak, scale, leave, migrate)
    both = {
        flag
        for command in (*others, *checkpoint.commands.values())
        for p in command.params
        for flag in p.opts
        if flag.startswith("--")
    }
    used = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text("README.md"))) - {"--any"}  # goes to the script
    assert used <= flags | both


def test_the_readmes_exit_codes_are_those_of_the_command() -> None:
    assert run.help is not None
    told = re.findall(r"^\s+(\d+) {2,}\S", run.help, re.MULTILINE)
    listed = [cells[0] for cells in rows("README.md") if cells[0].isdigit()]
    assert told and listed == told


def test_every_word_of_the_glossary_is_used_in_the_code() -> None:
    code = " ".join(file.read_text() for file in (ROOT / "src" / "regrow").rglob("*.py")).lower().replace("_", " ")
    words = re.findall(r"^\| \*\*(.+?)\*\*", text("docs/glossary.md"), re.MULTILINE)
    assert words == sorted(words) and len(words) > 40
    assert [word for word in words if not re.search(rf"\b{word}", re.sub(r"\s+", " ", code))] == []


def test_every_invariant_has_its_section_and_a_test_that_breaks_it() -> None:
    rules = re.findall(r"^- ([a-z-]+) {2,}", str(invariants.__doc__), re.MULTILINE)
    sections = re.split(r"^## ", text("docs/invariants.md"), flags=re.MULTILINE)[1:]
    told = {section.splitlines()[0]: section for section in sections}
    assert len(rules) == 10 and list(told)[: len(rules)] == rules
    for rule in rules:
        for part in ("**Promise.**", "**Facts.**", "**A violation means**", "**Shown by** `test_"):
            assert part in told[rule], f"{rule}: {part}"


def test_every_message_is_in_the_protocol() -> None:
    kinds = {kind.__name__ for kind in messages.Message.__args__}
    told = {name for cells in rows("docs/protocol.md") for name in re.findall(r"`(\w+)`", cells[0])}
    assert kinds <= told, sorted(kinds - told)


@pytest.mark.parametrize("machine", [attendance, membership], ids=lambda machine: machine.__name__)
def test_the_rules_a_machine_refers_to_are_numbered_in_the_protocol(machine: object) -> None:
    found = re.search(r"invariants ([AM])1 to [AM](\d)", str(machine.__doc__))
    assert found is not None
    told = re.findall(rf"^- \*\*{found[1]}(\d)\.", text("docs/protocol.md"), re.MULTILINE)
    assert told == [str(number) for number in range(1, int(found[2]) + 1)]


def test_every_decision_is_listed_and_says_what_it_cost() -> None:
    pages = sorted((ROOT / "docs" / "adr").glob("0*.md"))
    assert re.findall(r"\]\((0\d+.*?)\)", text("docs/adr/README.md")) == [page.name for page in pages]
    for page in pages:
        for part in ("**Context.**", "**Choice.**", "**What we gave up.**", "**How we would know we were wrong.**"):
            assert part in page.read_text(), f"{page.name}: {part}"


def test_the_release_is_that_of_the_package() -> None:
    assert tomllib.loads(text("pyproject.toml"))["project"]["version"] == regrow.__version__


def test_every_dependency_has_its_reason() -> None:
    declared = tomllib.loads(text("pyproject.toml"))["project"]["dependencies"]
    argued = [cells[0] for cells in rows("docs/adr/0011-dependencies.md")][1:]
    assert sorted(argued) == sorted(re.split(r"[<>=]", dependency)[0] for dependency in declared)


# The README's script


@pytest.fixture
def script(tmp_path: Path) -> Path:
    blocks = re.findall(r"```python\n(.*?)```", text("README.md"), re.DOTALL)
    assert len(blocks) == 1, "the README has one script"
    path = tmp_path / "train.py"
    path.write_text(blocks[0])
    return path


def digests(*command: str, cwd: Path) -> list[str]:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("REGROW_")}
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, env=environ, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return re.findall(r"digest (\w{64})$", done.stdout, re.MULTILINE)


@pytest.mark.process
def test_the_readmes_script_gives_the_same_weights_alone_and_among_others(script: Path) -> None:
    alone = digests(sys.executable, script.name, cwd=script.parent)
    together = digests(REGROW, "run", "--replicas", "2", script.name, cwd=script.parent)
    assert len(alone) == 1
    assert together == alone * 2


def test_every_failure_names_tests_that_exist() -> None:
    there = {
        name for path in (ROOT / "tests").rglob("*.py") for name in re.findall(r"^def (test_\w+)", path.read_text(), re.M)
    }
    shown = [cells for cells in rows("docs/failures.md") if cells[0] != "fault"]
    assert len(shown) > 30
    for fault, *_, tests in shown:
        named = set(re.findall(r"`(test_\w+)`", tests))
        assert named and named <= there, (fault, named - there)
