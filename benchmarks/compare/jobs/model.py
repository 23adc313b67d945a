"""The one model and the one stream of data that every system trains. Torch alone: it runs in the environments of all peers.

    settle()                                    before anything is built: one thread, one seed, deterministic kernels
    model, optimizer = build(size)
    loss = loss_of(model, batch(size, step, microbatch))
    digest(model)                               of all parameters, to the bit

Which data a microbatch holds is a function of its place alone, (step, microbatch); microbatches are numbered from 0 in each
step. There is no sampler that a system could lose, and whoever computes a microbatch computes the same.
"""

import ctypes
import hashlib

import torch
import torch.nn as nn
import torch.nn.functional as F

SEED = 1
VOCABULARY, WINDOW = 27, 32
SHAPES = {"large": {"width": 384, "layers": 6, "heads": 6}, "tiny": {"width": 16, "layers": 1, "heads": 2}}
SAMPLES = {"large": 2, "tiny": 2, "heavy": 4}
"""Of one microbatch."""
HEAVY_WIDTH, HEAVY_LAYERS = 2048, 24


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in self.qkv(self.norm1(x)).split(c, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Reads tokens, says the logits of the next ones."""

    def __init__(self, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, width), nn.Embedding(WINDOW, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Heavy(nn.Module):
    """100.7 M parameters, with AdamW's moments 1.2 GB of state, of which a microbatch of four rows makes little work."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(HEAVY_WIDTH, HEAVY_WIDTH, bias=False) for _ in range(HEAVY_LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + F.gelu(layer(x)) / HEAVY_LAYERS
        return x


def settle() -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.manual_seed(SEED)


def build(size: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = Heavy() if size == "heavy" else GPT(**SHAPES[size])
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def batch(size: str, step: int, microbatch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What the model reads, and what it should say."""
    generator = torch.Generator().manual_seed(SEED + 1000 * step + microbatch)
    if size == "heavy":
        x = torch.randn(SAMPLES[size], HEAVY_WIDTH, generator=generator)
        return x, x.roll(1, dims=1)
    # Arithmetic progressions modulo the vocabulary: there is something to learn.
    first, stride = torch.randint(1, VOCABULARY, (2, SAMPLES[size], 1), generator=generator)
    tokens = (first + stride * torch.arange(WINDOW + 1)) % VOCABULARY
    return tokens[:, :-1], tokens[:, 1:]


def loss_of(model: nn.Module, data: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Of one microbatch; the loss of a step is the mean over its microbatches. `model` may be wrapped, as by DDP."""
    x, target = data
    said = model(x)
    if said.shape == target.shape:
        return F.mse_loss(said, target)
    return F.cross_entropy(said.flatten(0, 1), target.flatten())


def digest(model: nn.Module) -> str:
    found = hashlib.sha256()
    for parameter in model.parameters():
        tensor = parameter.detach().contiguous()
        found.update(ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size()))
    return found.hexdigest()
