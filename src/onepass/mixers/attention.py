"""Softmax attention over everything seen so far. The state is the list of keys and values."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from onepass.mixers.attention_ops import attend, fits
from onepass.mixers.base import Asked, Mixed, Mixer, guided_heads
from onepass.registry import MIXERS

MANY_PAIRS = 20_000  # of a query and what it reads, from which on a CPU is faster without a mask


class KeysValues(NamedTuple):
    keys: Float[Tensor, "B H T K"]
    values: Float[Tensor, "B H T K"]


@MIXERS.add("attention")
class Attention(Mixer):
    def __init__(self, width: int, heads: int = 8):
        super().__init__()
        if width % heads:
            raise ValueError(f"a width of {width} does not divide into {heads} heads")
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def _project(self, x):
        return rearrange(self.qkv(x), "b l (three h k) -> three b h l k", three=3, h=self.heads)

    def init_state(self, batch):
        empty = self.qkv.weight.new_zeros(batch, self.heads, 0, self.out.in_features // self.heads)
        return KeysValues(empty, empty)

    def step(self, x, state):
        output, state = self.scan(x[:, None], state)
        return output[:, 0], state

    def scan(self, x, state):
        q, k, v = self._project(x)
        past, new = state.keys.shape[2], x.shape[1]
        keys, values = torch.cat([state.keys, k], 2), torch.cat([state.values, v], 2)
        # tokens that follow a past need a shifted triangle, which only an explicit mask can say
        shifted = past > 0 and new > 1
        visible = x.new_ones(new, past + new, dtype=torch.bool).tril(past) if shifted else None
        mixed = F.scaled_dot_product_attention(q, keys, values, visible, is_causal=past == 0)
        return self.out(rearrange(mixed, "b h l k -> b l (h k)")), KeysValues(keys, values)

    def peek(self, x, state):
        q, *own = self._project(x.flatten(1, 2))
        mixed, _ = _read(q, KeysValues(*own), state, x.shape[2])
        return self.out(rearrange(mixed, "b h l k -> b l (h k)")).unflatten(1, x.shape[1:3])

    def mix(self, x, queries, stop=None, own=None):
        length, chunk = x.shape[1], queries.shape[2]
        q, k, v = self._project(torch.cat([x, queries.flatten(1, 2)], 1))
        if own is None and fits(q):
            mixed, guidance = attend(q, k, v, stop, length, chunk)[0], q.new_zeros(())
        else:
            along = _along(q[:, :, :length], k[:, :, :length], v[:, :, :length])
            answers, guidance = self._answers(q[:, :, length:], k, v, chunk, stop, own)
            mixed = torch.cat([along, answers], 2)
        mixed = self.out(rearrange(mixed, "b h l k -> b l (h k)"))
        return Mixed(
            mixed[:, :length], mixed[:, length:].unflatten(1, queries.shape[1:3]), guidance
        )

    def ask(self, x, queries, stop=None, own=None):
        asked, width = queries.flatten(1, 2), x.shape[-1]
        # of the stream only keys and values
        q = F.linear(asked, self.qkv.weight[:width], self.qkv.bias[:width])
        kv = F.linear(torch.cat([x, asked], 1), self.qkv.weight[width:], self.qkv.bias[width:])
        q = rearrange(q, "b l (h k) -> b h l k", h=self.heads)
        k, v = rearrange(kv, "b l (two h k) -> two b h l k", two=2, h=self.heads)
        answers, guidance = self._answers(q, k, v, queries.shape[2], stop, own)
        mixed = self.out(rearrange(answers, "b h l k -> b l (h k)"))
        return Asked(mixed.unflatten(1, queries.shape[1:3]), guidance)

    def read_weights(self, x, queries):
        q, *own = self._project(queries.flatten(1, 2))
        past = KeysValues(*self._project(x)[1:])
        _, logits = _read(q, KeysValues(*own), past, queries.shape[2])
        return logits.softmax(-1)

    def _answers(
        self,
        q: Float[Tensor, "B H L K"],
        k: Float[Tensor, "B H TL K"],
        v: Float[Tensor, "B H TL K"],
        chunk: int,
        stop: Int[Tensor, "B Q"] | None,
        own: Bool[Tensor, "B Q T"] | None,
    ) -> tuple[Float[Tensor, "B H L K"], Float[Tensor, ""]]:
        """What queries read, and the guidance loss; keys and values are the past's, then theirs."""
        asked = q.shape[2]
        length = k.shape[2] - asked
        if own is None and fits(q):
            return attend(q, k, v, stop, length, chunk)[0], q.new_zeros(())
        place = torch.arange(length, device=q.device)
        seen = None if stop is None else place < stop[..., None]
        if own is None and q.dtype.itemsize > 2 and (q.is_cuda or asked * length < MANY_PAIRS):
            # the kernels of the library keep no weights; the price is that they look at all
            # queries, and that in short numbers their slopes are noise where attention is sharp
            mask = _visible(asked, length, chunk, seen, q.device)
            return F.scaled_dot_product_attention(q, k, v, mask), q.new_zeros(())
        past = KeysValues(k[:, :, :length], v[:, :, :length])
        theirs = KeysValues(k[:, :, length:], v[:, :, length:])
        answers, logits = _read(q, theirs, past, chunk, seen)
        if own is None:
            return answers, q.new_zeros(())
        return answers, _misplaced(logits[:, : guided_heads(self.heads)], own)


def _along(
    q: Float[Tensor, "B H T K"], k: Float[Tensor, "B H T K"], v: Float[Tensor, "B H T K"]
) -> Float[Tensor, "B H T K"]:
    """A stream from its start: every token sees those up to itself."""
    if fits(q):
        return attend(q, k, v, None, q.shape[2], 1)[0]
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _visible(
    asked: int, length: int, chunk: int, seen: Bool[Tensor, "B Q T"] | None, device: torch.device
) -> Bool[Tensor, "#B 1 L TL"]:
    """Queries of `chunk` tokens see the (seen) past, and of themselves what came before."""
    place = torch.arange(asked, device=device)
    apart = place[:, None] - place
    theirs = (apart >= 0) & (apart <= (place % chunk)[:, None])
    if seen is None:
        past = theirs.new_ones(1, asked, length)
    else:
        past = seen.repeat_interleave(chunk, 1)
    return torch.cat([past, theirs.expand(len(past), -1, -1)], -1)[:, None]


def _read(
    q: Float[Tensor, "B H L K"],
    own: KeysValues,
    past: KeysValues,
    chunk: int,
    visible: Bool[Tensor, "B Q T"] | None = None,
) -> tuple[Float[Tensor, "B H L K"], Float[Tensor, "B H Q C T"]]:
    """Queries of `chunk` tokens see the (visible) past and themselves; also the past's logits."""
    q, k, v = (part.unflatten(2, (-1, chunk)) for part in (q, *own))
    q = q * q.shape[-1] ** -0.5
    of_past = torch.einsum("bhlk,bhtk->bhlt", q.flatten(2, 3), past.keys).unflatten(2, (-1, chunk))
    if visible is not None:
        of_past = of_past.masked_fill(~visible[:, None, :, None], -torch.inf)
    # chunks are a token or a few: sums of products, which no matrix unit would do faster
    of_own = (q[..., :, None, :] * k[..., None, :, :]).sum(-1)
    later = of_own.new_ones(chunk, chunk, dtype=torch.bool).triu(1)
    of_own = of_own.masked_fill(later, -torch.inf)
    # side by side: of a softmax over two tensors Triton fails to compile the kernels
    full = torch.promote_types(v.dtype, torch.float32)  # also under autocast
    weights = torch.cat([of_past, of_own], -1).softmax(-1, dtype=full).to(v.dtype)
    on_past, on_own = weights.split([of_past.shape[-1], chunk], -1)
    mixed = torch.einsum("bhlt,bhtk->bhlk", on_past.flatten(2, 3), past.values)
    return mixed + (on_own[..., None] * v[..., None, :, :]).sum(-2).flatten(2, 3), of_past.to(full)


def _misplaced(logits: Float[Tensor, "B H Q C T"], own: Bool[Tensor, "B Q T"]) -> Float[Tensor, ""]:
    """Cross-entropy of the right task under the attention on past tokens, one guess per task.

    The weight of a task is the sum over its tokens, so the log-sum-exp over tasks is the one over
    all tokens, and only the right task's own sum is needed beside it.
    """
    mine = logits.masked_fill(~own[:, None, :, None], -torch.inf)
    return (logits.logsumexp(-1) - mine.logsumexp(-1)).mean()
