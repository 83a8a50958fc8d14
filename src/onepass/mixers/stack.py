"""Mixers made of mixers: a residual block, a position code, a stack. Each is a mixer itself."""

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from onepass.mixers.base import Asked, Mixed, Mixer


class Block(Mixer):
    """x + mixer(x), then x + mlp(x); with `norm="layer"` both read a normalised x."""

    def __init__(
        self,
        mixer: Mixer,
        width: int,
        hidden: int,
        dropout: float = 0.0,
        norm: Literal["none", "layer"] = "none",
    ):
        super().__init__()
        if norm not in ("none", "layer"):
            raise ValueError(f"block_norm is {norm!r}; there are: none, layer")
        self.mixer = mixer
        self.norm_mixer, self.norm_mlp = (
            nn.LayerNorm(width) if norm == "layer" else nn.Identity() for _ in range(2)
        )
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))
        self.dropout = nn.Dropout(dropout)

    def _add(self, x: Tensor, mixed: Tensor) -> Tensor:
        x = x + self.dropout(mixed)
        return x + self.dropout(self.mlp(self.norm_mlp(x)))

    def init_state(self, batch):
        return self.mixer.init_state(batch)

    def step(self, x, state):
        mixed, state = self.mixer.step(self.norm_mixer(x), state)
        return self._add(x, mixed), state

    def scan(self, x, state):
        mixed, state = self.mixer.scan(self.norm_mixer(x), state)
        return self._add(x, mixed), state

    def peek(self, x, state):
        return self._add(x, self.mixer.peek(self.norm_mixer(x), state))

    def mix(self, x, queries, stop=None, own=None):
        mixed = self.mixer.mix(self.norm_mixer(x), self.norm_mixer(queries), stop, own)
        # one pass over all tokens: half the kernels of two
        tokens = torch.cat([x, queries.flatten(1, 2)], 1)
        tokens = self._add(tokens, torch.cat([mixed.stream, mixed.queries.flatten(1, 2)], 1))
        length = x.shape[1]
        answers = tokens[:, length:].unflatten(1, queries.shape[1:3])
        return Mixed(tokens[:, :length], answers, mixed.guidance)

    def ask(self, x, queries, stop=None, own=None):
        asked = self.mixer.ask(self.norm_mixer(x), self.norm_mixer(queries), stop, own)
        return Asked(self._add(queries, asked.queries), asked.guidance)

    def read_weights(self, x, queries):
        return self.mixer.read_weights(self.norm_mixer(x), self.norm_mixer(queries))


class Position(Mixer):
    """Adds a sinusoidal code of how many tokens came before."""

    rate: Tensor

    def __init__(self, width: int):
        super().__init__()
        rate = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000.0) / width))
        self.register_buffer("rate", rate, persistent=False)

    def _code(self, position: Tensor) -> Float[Tensor, "... D"]:
        angle = position[..., None] * self.rate
        return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)

    def init_state(self, batch):
        return torch.zeros(batch, dtype=torch.long, device=self.rate.device)

    def step(self, x, state):
        return x + self._code(state), state + 1

    def scan(self, x, state):
        offset = torch.arange(x.shape[1], device=x.device)
        return x + self._code(state[:, None] + offset), state + x.shape[1]

    def peek(self, x, state):
        offset = torch.arange(x.shape[2], device=x.device)
        return x + self._code(state[:, None, None] + offset)

    def mix(self, x, queries, stop=None, own=None):
        along, offset = (torch.arange(n, device=x.device) for n in (x.shape[1], queries.shape[2]))
        begin = x.shape[1] if stop is None else stop[..., None]
        asked = queries + self._code(begin + offset)
        return Mixed(x + self._code(along), asked, x.new_zeros(()))


class Stack(Mixer):
    def __init__(self, layers: list[Mixer]):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def init_state(self, batch):
        return tuple(layer.init_state(batch) for layer in self._mixers())

    def _mixers(self) -> list[Mixer]:
        return [layer for layer in self.layers if isinstance(layer, Mixer)]

    def _thread(self, verb: str, x, state):
        after = []
        for layer, before in zip(self._mixers(), state, strict=True):
            x, now = getattr(layer, verb)(x, before)
            after.append(now)
        return x, tuple(after)

    def step(self, x, state):
        return self._thread("step", x, state)

    def scan(self, x, state):
        return self._thread("scan", x, state)

    def peek(self, x, state):
        for layer, before in zip(self._mixers(), state, strict=True):
            x = layer.peek(x, before)
        return x

    def mix(self, x, queries, stop=None, own=None):
        return self._mixed(self._mixers(), x, queries, stop, own)

    def ask(self, x, queries, stop=None, own=None):
        *layers, last = self._mixers()
        x, queries, guidance = self._mixed(layers, x, queries, stop, own)
        asked = last.ask(x, queries, stop, own)
        return Asked(asked.queries, guidance + asked.guidance)

    def read_weights(self, x, queries):
        *layers, last = self._mixers()
        x, queries, _ = self._mixed(layers, x, queries, None, None)
        return last.read_weights(x, queries)

    def _mixed(self, layers: list[Mixer], x, queries, stop, own) -> Mixed:
        guidance = x.new_zeros(())
        for layer in layers:
            x, queries, misplaced = layer.mix(x, queries, stop, own)
            guidance = guidance + misplaced
        return Mixed(x, queries, guidance)
