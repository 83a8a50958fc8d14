"""The delta rule: linear attention that corrects what it remembers instead of adding to it.

The state of a head is one matrix S. A token with key k, value v and rate b in (0, 1) reads what S
says of k, and moves it towards v:

    S_t = S_{t-1} + k_t (b_t (v_t - S_{t-1}^T k_t))^T        output_t = S_t^T q_t

Keys have length one, so that a step never overshoots and S stays bounded however long the stream.
With u_t the bracket, S_t is the sum of k_i u_i^T, so that the u of a whole chunk solve a triangular
system (I + tril(b K K^T)) U = b (V - K S), and everything else is matrix products.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from onepass.mixers.base import Mixed, Mixer
from onepass.registry import MIXERS

CHUNK = 64  # tokens of one triangular system

State = Float[Tensor, "B H K V"]


class Projected(NamedTuple):
    q: Float[Tensor, "B H *L K"]
    k: Float[Tensor, "B H *L K"]
    v: Float[Tensor, "B H *L V"]
    rate: Float[Tensor, "B H *L"]


@MIXERS.add("delta")
class Delta(Mixer):
    def __init__(self, width: int, heads: int = 8, head_width: int = 0):
        """`head_width` 0 is the width over the heads."""
        super().__init__()
        if not head_width and width % heads:
            raise ValueError(f"a width of {width} does not divide into {heads} heads")
        self.heads, self.head = heads, head_width or width // heads
        self.qkv = nn.Linear(width, 3 * heads * self.head)
        self.rate = nn.Linear(width, heads)
        self.out = nn.Linear(heads * self.head, width)
        # what is asked is like what was told, from the first step: without, it takes long to find
        for part in (self.qkv.weight, self.qkv.bias):
            with torch.no_grad():
                asked, told, _ = part.chunk(3)
                asked.copy_(told)

    def init_state(self, batch):
        return self.qkv.weight.new_zeros(batch, self.heads, self.head, self.head)

    def _project(self, x: Float[Tensor, "B L D"]) -> Projected:
        q, k, v = rearrange(self.qkv(x), "b l (three h k) -> three b h l k", three=3, h=self.heads)
        rate = rearrange(self.rate(x), "b l h -> b h l").sigmoid()
        # what is remembered is the sum of many corrections: in full precision also under autocast
        q, k, v, rate = (part.to(self.qkv.weight.dtype) for part in (q, k, v, rate))
        return Projected(F.normalize(q, dim=-1), F.normalize(k, dim=-1), v, rate)

    def step(self, x, state):
        q, k, v, rate = (part[:, :, 0] for part in self._project(x[:, None]))
        with torch.autocast(x.device.type, enabled=False):
            said = torch.einsum("bhk,bhkv->bhv", k, state)
            state = state + torch.einsum("bhk,bhv->bhkv", k, rate[..., None] * (v - said))
            mixed = torch.einsum("bhk,bhkv->bhv", q, state)
        return self.out(mixed.flatten(1)), state

    def scan(self, x, state):
        stream, _, state = self._along(self._project(x), state)
        return self._out(stream), state

    def peek(self, x, state):
        asked = _chunks(self._project(x.flatten(1, 2)), x.shape[2])
        with torch.autocast(x.device.type, enabled=False):
            said = [torch.einsum("bhqck,bhkv->bhqcv", part, state) for part in asked[:2]]
            return self._out(_with_own(asked, *said).flatten(2, 3)).unflatten(1, x.shape[1:3])

    def mix(self, x, queries, stop=None, own=None):
        tokens = self._project(x)
        stream, corrections, state = self._along(tokens, self.init_state(x.shape[0]))
        if stop is None:
            return Mixed(self._out(stream), self.peek(queries, state), x.new_zeros(()))
        seen = torch.arange(x.shape[1], device=x.device) < stop[..., None]
        asked = _chunks(self._project(queries.flatten(1, 2)), queries.shape[2])
        with torch.autocast(x.device.type, enabled=False):
            said = [_read(part, tokens.k, corrections, seen) for part in asked[:2]]
            answers = self._out(_with_own(asked, *said).flatten(2, 3))
        return Mixed(self._out(stream), answers.unflatten(1, queries.shape[1:3]), x.new_zeros(()))

    def _along(
        self, tokens: Projected, state: State
    ) -> tuple[Float[Tensor, "B H L V"], Float[Tensor, "B H L V"], State]:
        """What a stream reads, how each token corrects the state, and the state after all."""
        outputs, corrections = [tokens.v[:, :, :0]], [tokens.v[:, :, :0]]
        with torch.autocast(state.device.type, enabled=False):
            for part in zip(*(part.split(CHUNK, 2) for part in tokens), strict=True):
                q, k, v, rate = Projected(*part)
                change = _corrections(k, v - k @ state, rate)
                outputs.append(q @ state + (q @ k.mT).tril() @ change)
                corrections.append(change)
                state = state + k.mT @ change
        return torch.cat(outputs, 2), torch.cat(corrections, 2), state

    def _out(self, mixed: Float[Tensor, "B H L V"]) -> Float[Tensor, "B L D"]:
        return self.out(rearrange(mixed, "b h l v -> b l (h v)"))


def _chunks(tokens: Projected, chunk: int) -> Projected:
    """Queries of `chunk` tokens each: [B H Q C ...]."""
    return Projected(*(part.unflatten(2, (-1, chunk)) for part in tokens))


def _corrections(
    k: Float[Tensor, "*N L K"], missing: Float[Tensor, "*N L V"], rate: Float[Tensor, "*N L"]
) -> Float[Tensor, "*N L V"]:
    """u of tokens in a row, given what the state before them misses of each value."""
    system = (rate[..., None] * (k @ k.mT)).tril(-1)
    return torch.linalg.solve_triangular(
        system, rate[..., None] * missing, upper=False, unitriangular=True
    )


def _read(
    asked: Float[Tensor, "B H Q C K"],
    k: Float[Tensor, "B H T K"],
    corrections: Float[Tensor, "B H T V"],
    seen: Bool[Tensor, "B Q T"],
) -> Float[Tensor, "B H Q C V"]:
    """What the state said at each query's own stop."""
    alike = torch.einsum("bhqck,bhtk->bhqct", asked, k) * seen[:, None, :, None]
    return torch.einsum("bhqct,bhtv->bhqcv", alike, corrections)


def _with_own(
    asked: Projected, by_query: Float[Tensor, "B H Q C V"], by_key: Float[Tensor, "B H Q C V"]
) -> Float[Tensor, "B H Q C V"]:
    """What queries read, given what the state says of their queries and keys, and then their own
    tokens."""
    change = _corrections(asked.k, asked.v - by_key, asked.rate)
    return by_query + (asked.q @ asked.k.mT).tril() @ change
