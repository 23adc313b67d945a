"""A compilation is told to the stamp, also after torch._dynamo.reset(), which forgets who asked to be called."""

import pytest
import torch

from regrow.core.progress import Phase
from regrow.shell.stamp import Page, Stamp
from regrow.worker.compiling import Compilations

pytest.importorskip("torch._dynamo.callback")


def test_while_dynamo_compiles_the_stamp_says_so() -> None:
    page = Page("test")
    stamp = Stamp(page.fd)
    stamp.enter(Phase.MICROBATCH, 3, 1)
    seen: list[str] = []

    def compiler(graph, inputs):
        seen.append(page.read().place.phase)
        return graph.forward

    compilations = Compilations(stamp)
    handler = torch._dynamo.callback.callback_handler
    try:
        for _ in range(2):
            compilations.watch()
            compilations.watch()
            assert handler.start_callbacks.count(compilations._begins) == 1
            torch.compile(torch.sin, backend=compiler)(torch.ones(3))
            assert page.read().place.phase == "microbatch"
            torch._dynamo.reset()
    finally:
        for callbacks, ours in (
            (handler.start_callbacks, compilations._begins),
            (handler.end_callbacks, compilations._ends),
        ):
            if ours in callbacks:
                callbacks.remove(ours)
        page.close()
    assert seen == ["compile", "compile"]
