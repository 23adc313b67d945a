"""Train a small GPT on text. Alone: `python train_gpt.py`. Among replicas: `regrow run --replicas 4 train_gpt.py`.

Kill any replica at any time: the digest printed at the end stays the same.
"""

import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

import regrow


class Text(torch.utils.data.Dataset):
    """Overlapping windows of characters; the text is made up here, so that nothing has to be fetched."""

    def __init__(self, length: int, window: int) -> None:
        generator = torch.Generator().manual_seed(1234)
        words = [
            "".join(chr(97 + int(c)) for c in torch.randint(0, 26, (n,), generator=generator)) for n in (2, 3, 4, 5, 6) * 20
        ]
        picks = torch.randint(0, len(words), (length // 4,), generator=generator)
        text = " ".join(words[int(i)] for i in picks)[: length + 1]
        self.tokens = torch.tensor([0 if c == " " else ord(c) - 96 for c in text])
        self.window = window

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.window

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        start = index * self.window
        chunk = self.tokens[start : start + self.window + 1]
        return chunk[:-1], chunk[1:]


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = (
            y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in self.qkv(self.norm1(x)).split(c, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, vocabulary: int, window: int, width: int, layers: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(window, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--window", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=4)
    args = parser.parse_args()

    job = regrow.join(seed=7)
    model = GPT(27, args.window, args.width, args.layers, heads=4, dropout=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    warmup = max(1, args.steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda n: min(1.0, (n + 1) / warmup) * 0.5 * (1 + math.cos(math.pi * n / args.steps))
    )
    job.track(model=model, optimizer=optimizer, schedule=schedule)
    data = job.data(Text(20_000, args.window), batch_size=args.batch_size)

    for step in job.steps(args.steps, data):
        for tokens, targets in step:
            logits = model(tokens)
            step.backward(F.cross_entropy(logits.flatten(0, 1), targets.flatten()))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step.reporter and step.index % 10 == 0:
            print(f"step {step.index}: loss {step.loss:.4f}", flush=True)

    print(f"digest {job.digest()}", flush=True)


if __name__ == "__main__":
    main()
