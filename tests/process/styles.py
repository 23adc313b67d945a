"""Ways in which people train, each by its name: `styles.py NAME`. A style is what it tracks, its loss and its update."""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn as nn
import torch.nn.functional as F
from tiny import Points, wait_for_strength
from torch.optim.lr_scheduler import CosineAnnealingLR, ReduceLROnPlateau
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

import regrow

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass
class Style:
    model: nn.Module
    optimizers: list[torch.optim.Optimizer]
    loss: Callable[[regrow.Step, Batch], torch.Tensor]
    update: Callable[[regrow.Step], None] | None = None
    before: Callable[[regrow.Step], None] = lambda step: None
    tracked: dict[str, object] = field(default_factory=dict)


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.1), nn.LayerNorm(32), nn.Linear(32, 4))


def squares(model: nn.Module) -> Callable[[regrow.Step, Batch], torch.Tensor]:
    return lambda step, batch: (model(batch[0]) - batch[1]).square().mean()


def plain(make: Callable[..., torch.optim.Optimizer], **options: object) -> Callable[[], Style]:
    def build() -> Style:
        model = network()
        return Style(model, [make(model.parameters(), lr=1e-2, **options)], squares(model))

    return build


def clipped() -> Style:
    style = plain(torch.optim.AdamW)()
    (optimizer,) = style.optimizers

    def update(step: regrow.Step) -> None:
        nn.utils.clip_grad_norm_(style.model.parameters(), 0.1)
        optimizer.step()

    style.update = update
    return style


def scheduled() -> Style:
    """Two schedules, one of them steered by the loss that all agree on."""
    style = plain(torch.optim.SGD, momentum=0.9)()
    (optimizer,) = style.optimizers
    cosine = CosineAnnealingLR(optimizer, T_max=9)
    plateau = ReduceLROnPlateau(optimizer, factor=0.5, patience=0)

    def update(step: regrow.Step) -> None:
        optimizer.step()
        cosine.step()
        plateau.step(step.loss)

    style.update, style.tracked = update, {"cosine": cosine, "plateau": plateau}
    return style


def averaged() -> Style:
    """An exponential moving average of the weights."""
    style = plain(torch.optim.AdamW)()
    (optimizer,) = style.optimizers
    ema = AveragedModel(style.model, multi_avg_fn=get_ema_multi_avg_fn(0.9)).requires_grad_(False)

    def update(step: regrow.Step) -> None:
        optimizer.step()
        ema.update_parameters(style.model)

    style.update, style.tracked = update, {"ema": ema}
    return style


def bf16() -> Style:
    style = plain(torch.optim.AdamW)()

    def loss(step: regrow.Step, batch: Batch) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return squares(style.model)(step, batch)

    style.loss = loss
    return style


def fp16() -> Style:
    """With a scaler whose first scales are too large: steps are skipped, on every replica at once."""
    style = plain(torch.optim.AdamW)()
    (optimizer,) = style.optimizers
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=3)

    def loss(step: regrow.Step, batch: Batch) -> torch.Tensor:
        with torch.autocast("cpu", torch.float16):
            return scaler.scale(F.mse_loss(style.model(batch[0]).half(), batch[1].half()))

    def update(step: regrow.Step) -> None:
        scaler.step(optimizer)
        scaler.update()

    style.loss, style.update, style.tracked = loss, update, {"scaler": scaler}
    return style


def groups() -> Style:
    """Two optimizers, one of them with two groups."""
    model = network()
    first, last = model[0], model[4]
    one = torch.optim.AdamW([{"params": [first.weight]}, {"params": [first.bias], "weight_decay": 0.0}], lr=1e-2)
    two = torch.optim.SGD([*last.parameters(), *model[3].parameters()], lr=1e-2, momentum=0.9)
    return Style(model, [one, two], squares(model))


def unfrozen() -> Style:
    """The first layer is trained from the fourth step on, and the last one until then."""
    style = plain(torch.optim.AdamW)()

    def before(step: regrow.Step) -> None:
        if step.index in (0, 4):
            style.model[0].requires_grad_(step.index == 4)
            style.model[4].requires_grad_(step.index == 0)

    style.before = before
    return style


def sparse() -> Style:
    """One branch is used by some samples only, one by none."""
    model = nn.ModuleDict({"always": network(), "odd": nn.Linear(16, 4), "never": nn.Linear(16, 4)})

    def loss(step: regrow.Step, batch: Batch) -> torch.Tensor:
        x, y, index = batch
        out = model["always"](x)
        return ((out + model["odd"](x) if int(index[0]) % 2 else out) - y).square().mean()

    return Style(model, [torch.optim.AdamW(model.parameters(), lr=1e-2)], loss)


def tied() -> Style:
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16))
    model[2].weight = model[0].weight
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return Style(model, [optimizer], lambda step, batch: (model(batch[0])[:, :4] - batch[1]).square().mean())


def shapes() -> Style:
    """Microbatches of different sizes, weighted by theirs."""
    style = plain(torch.optim.AdamW)()

    def loss(step: regrow.Step, batch: Batch) -> torch.Tensor:
        size = 1 + int(batch[2][0]) % 3
        return squares(style.model)(step, tuple(part[:size] for part in batch)) * size / 3

    style.loss = loss
    return style


def checkpointed() -> Style:
    style = plain(torch.optim.AdamW)()
    inner = style.model[:4]
    style.loss = lambda step, batch: (
        (style.model[4](checkpoint(inner, batch[0], use_reentrant=False)) - batch[1]).square().mean()
    )
    return style


def reentered() -> Style:
    """A module in two reentrant checkpoints: backward makes its gradient, computes for a while, and adds to it once more."""
    model = nn.ModuleDict({"twice": nn.Linear(16, 16), "head": nn.Linear(16, 4)})

    def long(x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.01)  # what a large model takes; long enough for the first gradient to be on its way
        return F.gelu(model["twice"](x))

    def loss(step: regrow.Step, batch: Batch) -> torch.Tensor:
        x = batch[0].clone().requires_grad_()
        for _ in range(2):
            x = checkpoint(long, x, use_reentrant=True)
        return (model["head"](x) - batch[1]).square().mean()

    return Style(model, [torch.optim.AdamW(model.parameters(), lr=1e-2)], loss)


def recurrent() -> Style:
    model = nn.ModuleDict({"rnn": nn.LSTM(4, 8, num_layers=2, dropout=0.1, batch_first=True), "head": nn.Linear(8, 4)})

    def loss(step: regrow.Step, batch: Batch) -> torch.Tensor:
        out, _ = model["rnn"](batch[0].reshape(-1, 4, 4))
        return (model["head"](out[:, -1]) - batch[1]).square().mean()

    return Style(model, [torch.optim.AdamW(model.parameters(), lr=1e-2)], loss)


def normed() -> Style:
    """Convolutions with batch norm, whose running statistics are part of the state, and a metric."""
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4)
    )

    def loss(step: regrow.Step, batch: Batch) -> torch.Tensor:
        out = model(batch[0].reshape(-1, 1, 4, 4))
        step.metrics.add("bias", (out - batch[1]).mean(), weight=len(out))
        return (out - batch[1]).square().mean()

    return Style(model, [torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)], loss)


def adversarial() -> Style:
    """A GAN: even steps train the critic, odd ones the generator."""
    model = nn.ModuleDict({"maker": nn.Linear(16, 4), "critic": nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))})
    optimizers = [torch.optim.AdamW(model[name].parameters(), lr=1e-2) for name in ("critic", "maker")]

    def loss(step: regrow.Step, batch: Batch) -> torch.Tensor:
        made = model["maker"](torch.randn(len(batch[0]), 16))
        if step.index % 2:
            return -model["critic"](made).mean()
        return model["critic"](made.detach()).mean() - model["critic"](batch[1]).mean()

    def update(step: regrow.Step) -> None:
        optimizers[step.index % 2].step()

    return Style(model, optimizers, loss, update)


def compiled() -> Style:
    style = plain(torch.optim.AdamW)()
    fast = torch.compile(style.model, backend="aot_eager")
    style.loss = squares(fast)
    return style


def kerneled() -> Style:
    """Kernels of Inductor's own, for microbatches of two sizes. In a variance over the batch, a program for any size has
    other bits than one for this size."""
    style = plain(torch.optim.AdamW)()

    @torch.compile
    def distance(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = F.dropout(out, 0.1)
        return (out - y).square().mean() + out.var(dim=0).square().sum()

    def loss(step: regrow.Step, batch: Batch) -> torch.Tensor:
        size = 2 + int(batch[2][0]) % 2
        return distance(style.model(batch[0][:size]), batch[1][:size])

    style.loss = loss
    return style


STYLES: dict[str, Callable[[], Style]] = {
    "AdamW": plain(torch.optim.AdamW),
    "AdamW, foreach": plain(torch.optim.AdamW, foreach=True),
    "AdamW, fused": plain(torch.optim.AdamW, fused=True),
    "SGD with momentum": plain(torch.optim.SGD, momentum=0.9),
    "SGD, fused": plain(torch.optim.SGD, momentum=0.9, fused=True),
    "gradient clipping": clipped,
    "schedulers": scheduled,
    "average of weights": averaged,
    "bf16 autocast": bf16,
    "fp16 with a scaler": fp16,
    "several optimizers and groups": groups,
    "frozen and unfrozen": unfrozen,
    "parameters without gradient": sparse,
    "tied weights": tied,
    "mixed shapes": shapes,
    "gradient checkpointing": checkpointed,
    "a module in two reentrant checkpoints": reentered,
    "a recurrent net": recurrent,
    "a convolutional net with batch norm": normed,
    "a GAN": adversarial,
    "torch.compile": compiled,
    "torch.compile with Inductor, mixed shapes": kerneled,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("style", choices=STYLES)
    parser.add_argument("--hold", type=int, default=0, help="wait for so many members from the sixth step on")
    args = parser.parse_args()
    job = regrow.join(lanes=6, seed=5)
    style = STYLES[args.style]()
    optimizers = {f"optimizer{at}": optimizer for at, optimizer in enumerate(style.optimizers)}
    job.track(model=style.model, **optimizers, **style.tracked)
    for step in job.steps(14, job.data(Points(), batch_size=3)):
        style.before(step)
        for batch in step:
            step.backward(style.loss(step, batch))
        if style.update is not None:
            style.update(step)
        else:
            for optimizer in style.optimizers:
                optimizer.step()
        for optimizer in style.optimizers:
            optimizer.zero_grad()
        if args.hold and step.live and step.index >= 6:
            wait_for_strength(args.hold, step.index)
        if step.reporter:
            print(f"step {step.index} loss {step.loss} {dict(step.metrics)}", flush=True)
    print(f"digest {job.digest()}", flush=True)


if __name__ == "__main__":
    main()
