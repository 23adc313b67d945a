"""The job stall.py attacks: the example's GPT at about 10 M parameters, whose replica r1 stands still in a lane.

r1 takes part in one step of each of its lives, then waits inside its next lane to be killed. So the death hits the others
where they wait for it, and what they need afterwards is the protocol's own time.
"""

import os
import sys
import threading
from pathlib import Path

import torch
import torch.nn.functional as F

import regrow

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
from train_gpt import GPT, Text

job = regrow.join(seed=1)
model = GPT(27, window=32, width=384, layers=6, heads=6, dropout=0.1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
job.track(model=model, optimizer=optimizer)
data = job.data(Text(20_000, 32), batch_size=1)
is_victim = os.environ.get("REGROW_REPLICA") == "r1"
has_lived = False

for step in job.steps(100_000, data):
    for tokens, targets in step:
        if is_victim and step.live and has_lived:
            print(f"standing {step.index}", flush=True)
            threading.Event().wait()
        step.backward(F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()))
    optimizer.step()
    has_lived = has_lived or step.live
    if step.index == 0 and step.reporter:
        print(f"parameters {sum(p.numel() for p in model.parameters())}", flush=True)
