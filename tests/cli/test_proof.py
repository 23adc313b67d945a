"""What a soak holds against a job: whom `regrow why` has to name, and whom not."""

from regrow.cli.proof import wrong_blame
from regrow.core.chronicle import Chronicle
from regrow.core.episodes import tell
from regrow.core.records import Departed, Fact, Line, WorkerExited
from regrow.core.roster import Member
from regrow.shell.journal import Account

LEFT = Departed(step=5, why="r1.0 has handed over and leaves", fault="left", digest=None)


def told(how: str, departed: Departed | None) -> tuple[list[Account], Chronicle]:
    exited = WorkerExited(member=Member("r1", 0), pid=7, how=how, clean=False, cause="died-r1.0")
    facts: dict[str, list[Fact]] = {"agent": [exited], "r1.0": [departed] if departed else []}
    journals = {
        who: [Line(at=0.0, ns=ns, who=who, what=fact) for ns, fact in enumerate(each)] for who, each in facts.items()
    }
    return [Account(who=who, lines=lines, incomplete=False) for who, lines in journals.items()], Chronicle(journals)


def test_whoever_died_has_to_be_named() -> None:
    accounts, chronicle = told("killed by SIGKILL", None)
    assert wrong_blame(accounts, tell(chronicle)) is None
    assert wrong_blame(accounts, tell(Chronicle({}))) == "`regrow why` does not name ['r1.0'], and names [] more than once"


def test_one_that_had_handed_over_and_was_struck_on_its_way_out_has_not_died() -> None:
    accounts, chronicle = told("killed by SIGKILL", LEFT)
    tale = tell(chronicle)
    assert not tale.episodes and wrong_blame(accounts, tale) is None
