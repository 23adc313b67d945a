"""Train a small residual network on images. Alone: `python train_resnet.py`. Among replicas:

    regrow run --replicas 4 examples/train_resnet.py --tensorboard runs/resnet

Batch norm's running statistics and the accuracy are agreed on like the gradient: kill any replica at any time, and the
digest printed at the end stays the same. The images are made up here, so that nothing has to be fetched.
"""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

import regrow

CLASSES = 8


class Stripes(torch.utils.data.Dataset):
    """Noisy stripes; the class is their direction."""

    def __len__(self) -> int:
        return 2000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        label = index % CLASSES
        generator = torch.Generator().manual_seed(index)
        angle = torch.tensor(torch.pi * label / CLASSES)
        y, x = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
        wave = torch.sin(x * angle.cos() + y * angle.sin() + 6.0 * torch.rand((), generator=generator))
        return wave + 0.3 * torch.randn(3, 16, 16, generator=generator), label


class Block(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outside), nn.BatchNorm2d(outside)
        self.short = nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.short(x))


class ResNet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.blocks = nn.Sequential(Block(width, width, 1), Block(width, 2 * width, 2), Block(2 * width, 4 * width, 2))
        self.head = nn.Linear(4 * width, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(images)).mean(dim=(2, 3)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--tensorboard", metavar="DIR", help="write curves there (needs the tensorboard package)")
    args = parser.parse_args()

    job = regrow.join(lanes=6, seed=7)
    model = ResNet(args.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=args.steps)
    job.track(model=model, optimizer=optimizer, schedule=schedule)
    data = job.data(Stripes(), batch_size=args.batch_size)
    writer = None

    for step in job.steps(args.steps, data):
        for images, labels in step:
            logits = model(images)
            step.metrics.add("accuracy", (logits.argmax(dim=1) == labels).float().mean(), weight=len(labels))
            step.backward(F.cross_entropy(logits, labels))
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step.reporter:  # one live replica; after a failure it may be another one
            if args.tensorboard:
                from torch.utils.tensorboard import SummaryWriter

                writer = writer or SummaryWriter(args.tensorboard)
                writer.add_scalar("loss", step.loss, step.index)
                writer.add_scalar("accuracy", step.metrics["accuracy"], step.index)
                writer.flush()
            if step.index % 10 == 9:
                print(f"step {step.index}: loss {step.loss:.4f}, accuracy {step.metrics['accuracy']:.1%}", flush=True)

    print(f"digest {job.digest()}", flush=True)


if __name__ == "__main__":
    main()
