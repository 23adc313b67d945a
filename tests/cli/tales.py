"""A story in, a transcript out: tales/*.txt hold a job's journals, and under them what `regrow why` tells of them.

    # what this is about
    state finished
    1.250 agent WorkerExited {"member": ["r1", 0], ...}       seconds, process, fact
    incomplete r1.0
    ----
    the words

Times of day are UTC, from 03:00:00 on. `python tests/cli/tales.py` writes the words anew: read the difference before you
commit it.
"""

import json
import time
from pathlib import Path

import msgspec

from regrow.cli.telling import tell_people
from regrow.cli.wording import Manner
from regrow.core.chronicle import Chronicle
from regrow.core.episodes import Tale, tell
from regrow.core.records import Line

HERE = Path(__file__).parent / "tales"
PATHS = sorted(HERE.glob("*.txt"))
MIDNIGHT = 1_790_000_000 // 86_400 * 86_400
START_NS = 5_000_000_000_000


class Story(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    state: str
    journals: dict[str, list[Line]]
    incomplete: frozenset[str]
    words: str

    def tale(self) -> Tale:
        return tell(Chronicle(self.journals, self.incomplete))


def load(path: Path) -> Story:
    told, _, words = path.read_text().partition("----\n")
    state, incomplete = "", set()
    journals: dict[str, list[Line]] = {}
    for row in told.splitlines():
        first, _, rest = row.partition(" ")
        if first == "state":
            state = rest
        elif first == "incomplete":
            incomplete.add(rest)
        elif first and first != "#":
            who, fact, body = rest.split(" ", 2)
            journals.setdefault(who, []).append(line(float(first), who, fact, json.loads(body)))
    return Story(name=path.stem, state=state, journals=journals, incomplete=frozenset(incomplete), words=words)


def line(at_s: float, who: str, fact: str, body: dict[str, object]) -> Line:
    raw = {
        "at": MIDNIGHT + 3 * 3600 + at_s,
        "ns": START_NS + round(at_s * 1e9),
        "who": who,
        "what": {"fact": fact, **body},
    }
    return msgspec.convert(raw, Line)


def transcript(job: str, state: str, tale: Tale, *, every: bool = False, last: int = 2) -> str:
    manner = Manner(
        width=100,
        every=every,
        last=last,
        clock=lambda at: time.strftime("%H:%M:%S", time.gmtime(at)),
        last_words=lambda output: ["printed last"] if output == "output/r2.0.log" else [],
    )
    return "".join(f"{row}\n" for row in tell_people(job, state, tale, manner))


if __name__ == "__main__":
    for path in PATHS:
        story = load(path)
        told, _, _ = path.read_text().partition("----\n")
        path.write_text(f"{told}----\n{transcript('run', story.state, story.tale())}")
