"""Linear attention: softmax replaced by a feature map, so that the state is one matrix per head.

    output_t = sum_{s<=t} phi(q_t).phi(k_s) v_s / sum_{s<=t} phi(q_t).phi(k_s)

A feature map may grow without bound, so features come with a log-scale: phi(k_s) = e^{m_s} f_s with
f_s of order one. The state is kept relative to the largest scale so far; scales of queries cancel,
and since outputs do not depend on what they are relative to, no gradient goes that way.
"""

from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from onepass.mixers.base import Asked, Mixed, Mixer, guided_heads
from onepass.mixers.features import Elu, Favor
from onepass.registry import MIXERS

LONGEST = 512  # chunk of tokens that look at each other one by one
# a log-scale below any other, yet finite: the difference of two of them is 0, not NaN
LOWEST = -1e30


class Sums(NamedTuple):
    values: Float[Tensor, "B H F V"]  # sum of e^{m_s - scale} f_s v_s
    keys: Float[Tensor, "B H F"]  # the same without the values
    scale: Float[Tensor, "B H"]  # the largest m_s so far


class Past(NamedTuple):
    k: Float[Tensor, "B H L F"]
    v: Float[Tensor, "B H L V"]
    scale: Float[Tensor, "B H L"]  # m of the keys


class Projected(NamedTuple):
    q: Float[Tensor, "B H L F"]
    k: Float[Tensor, "B H L F"]
    v: Float[Tensor, "B H L V"]
    scale: Float[Tensor, "B H L"]

    @property
    def past(self) -> Past:
        return Past(*self[1:])


class LinearAttention(Mixer):
    def __init__(self, width: int, heads: int, features: Elu | Favor, key: int, value: int):
        super().__init__()
        self.heads, self.phi, self.key, self.value = heads, features, key, value
        self.qkv = nn.Linear(width, heads * (2 * key + value))
        self.out = nn.Linear(heads * value, width)
        # a token costs c (F + V) within a chunk of c, and F V with the state of the chunk before
        even = features.features * value // (features.features + value)
        self.chunk = max(64, min(LONGEST, 4 * even))

    def init_state(self, batch):
        zeros = self.qkv.weight.new_zeros
        shape = batch, self.heads, self.phi.features
        return Sums(zeros(*shape, self.value), zeros(shape), zeros(shape[:2]) + LOWEST)

    def _project(self, x: Float[Tensor, "B L D"]) -> Projected:
        q, k, v = self._linear(x, self.qkv.weight, self.qkv.bias)
        return Projected(self._features(q, v.dtype)[0], *self._past(k, v))

    def _past(self, k: Tensor, v: Tensor) -> Past:
        k, scale = self._features(k, v.dtype)
        return Past(k, rearrange(v, "b l (h v) -> b h l v", h=self.heads), scale)

    def _linear(
        self, x: Float[Tensor, "B L D"], weight: Float[Tensor, "W D"], bias: Float[Tensor, "W"]
    ) -> tuple[Float[Tensor, "B L _"], ...]:
        """Keys and values, and before them queries where the weights have them."""
        keys, values = self.heads * self.key, self.heads * self.value
        steep = len(weight) - values
        if not self.phi.is_steep:
            both = nn.functional.linear(x, weight, bias)
            return both.split([keys] * (steep // keys) + [values], -1)
        cut = [steep, values]
        with torch.autocast(x.device.type, enabled=False):
            both = nn.functional.linear(
                x.to(weight.dtype), weight.split(cut)[0], bias.split(cut)[0]
            )
        v = nn.functional.linear(x, weight.split(cut)[1], bias.split(cut)[1])
        return *both.split(keys, -1), v

    def _features(self, x: Float[Tensor, "B L HK"], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Under autocast features are as short as values; scales and all sums are not."""
        with torch.autocast(x.device.type, enabled=False):
            heads = rearrange(x, "b l (h k) -> b h l k", h=self.heads)
            features, scale = self.phi(heads.to(self.qkv.weight.dtype))
        return features.to(dtype), scale

    def step(self, x, state):
        q, k, v, own = (part[:, :, 0].to(state.scale.dtype) for part in self._project(x[:, None]))
        with torch.autocast(x.device.type, enabled=False):
            scale = torch.maximum(state.scale, own).detach()
            keep, add = (state.scale - scale).exp(), (own - scale).exp()
            key = add[..., None] * k
            state = Sums(
                keep[..., None, None] * state.values + torch.einsum("bhf,bhv->bhfv", key, v),
                keep[..., None] * state.keys + key,
                scale,
            )
            mixed = torch.einsum("bhf,bhfv->bhv", q, state.values)
            total = torch.einsum("bhf,bhf->bh", q, state.keys)
        return self.out((mixed / floored(total)[..., None]).flatten(1)), state

    def scan(self, x, state):
        if x.shape[1] == 0:
            return x, state
        return self._along(self._project(x), state)

    def peek(self, x, state):
        asked, chunk = self._project(x.flatten(1, 2)), x.shape[2]
        with torch.autocast(x.device.type, enabled=False):
            mixed = _read(asked, state, chunk)
        return self._out(mixed, chunk)

    def mix(self, x, queries, stop=None, own=None):
        tokens = self._project(x)
        stream, state = self._along(tokens, None)
        return Mixed(stream, *self._answers(queries, tokens.past, state, stop, own))

    def ask(self, x, queries, stop=None, own=None):
        # of the stream only keys and values
        first = self.heads * self.key
        past = self._past(*self._linear(x, self.qkv.weight[first:], self.qkv.bias[first:]))
        long = stop is None and x.shape[1] > self.chunk
        with torch.autocast(x.device.type, enabled=False):
            state = _remembered(past, None) if long else None
        return Asked(*self._answers(queries, past, state, stop, own))

    def read_weights(self, x, queries):
        asked, chunk = self._project(queries.flatten(1, 2)), queries.shape[2]
        weight, _ = _attend(asked.q, self._project(x).past, self.heads, None, chunk)
        return (weight / floored(weight.sum(-1, keepdim=True))).unflatten(2, (-1, chunk))

    def _answers(
        self,
        queries: Float[Tensor, "B Q C D"],
        past: Past,
        state: Sums | None,
        stop: Int[Tensor, "B Q"] | None,
        own: Bool[Tensor, "B Q T"] | None,
    ) -> Asked:
        """What queries read: of a long past from its state, of a short one token by token."""
        asked, chunk = self._project(queries.flatten(1, 2)), queries.shape[2]
        length = past.k.shape[2]
        by_state = stop is None and length > self.chunk
        with torch.autocast(queries.device.type, enabled=False):
            # the weights on single tokens, of those heads for which they are needed
            guided = guided_heads(self.heads) if own is not None else 0
            heads = guided if by_state else self.heads
            weight, scale = _attend(asked.q[:, :heads], past, heads, stop, chunk)
            if by_state:
                assert state is not None
                mixed = _read(asked, state, chunk)
            else:
                kept, whole, own_read = _with_own(asked, weight.sum(-1), scale, chunk)
                mixed = _of_values(weight * kept, whole, past.v) + own_read
            guidance = queries.new_zeros(())
            if own is not None:
                guidance = _misplaced(weight[:, :guided].unflatten(2, (-1, chunk)), own)
        return Asked(self._out(mixed, chunk), guidance)

    def _along(self, p: Projected, state: Sums | None) -> tuple[Float[Tensor, "B L D"], Sums]:
        """A whole stream, chunk by chunk; without a state, from the start."""
        outputs = []
        with torch.autocast(p.q.device.type, enabled=False):
            # split, not sliced: the way back through each slice would touch the whole stream
            for chunk in zip(*(part.split(self.chunk, 2) for part in p), strict=True):
                output, state = _chunk(Projected(*chunk), state)
                outputs.append(output)
        assert state is not None
        return self.out(rearrange(torch.cat(outputs, 2), "b h l v -> b l (h v)")), state

    def _out(self, mixed: Float[Tensor, "B H L V"], chunk: int) -> Float[Tensor, "B Q C D"]:
        return self.out(rearrange(mixed, "b h l v -> b l (h v)")).unflatten(1, (-1, chunk))


def _read(p: Projected, state: Sums, chunk: int) -> Float[Tensor, "B H L V"]:
    """Queries of `chunk` tokens, all from one state."""
    q = p.q.to(state.keys.dtype)
    total = torch.einsum("bhlf,bhf->bhl", q, state.keys)
    kept, whole, own_read = _with_own(p, total, state.scale[..., None], chunk)
    return _of_values(q * kept, whole, state.values) + own_read


def _attend(
    q: Float[Tensor, "B H L F"],
    past: Past,
    heads: int,
    stop: Int[Tensor, "B Q"] | None,
    chunk: int,
) -> tuple[Float[Tensor, "B H L T"], Float[Tensor, "B H #L"]]:
    """Weights of the first heads on the past (up to each stop), relative to its largest scale."""
    scale = past.scale[:, :heads]
    log, largest = scale[:, :, None], scale.detach().amax(-1, keepdim=True)
    if stop is not None:
        stop = stop.repeat_interleave(chunk, 1).clamp(max=scale.shape[2])
        later = torch.arange(scale.shape[2], device=stop.device) >= stop[..., None]
        log = log.masked_fill(later[:, None], -torch.inf)
        # looked up: a maximum within the kernel that sums the weights is one that Triton 3.6 cannot
        # compile ("PassManager::run failed")
        running = nn.functional.pad(scale.detach(), (1, 0), value=LOWEST).cummax(-1).values
        largest = running.gather(2, stop[:, None].expand(-1, heads, -1))
    weight = torch.einsum("bhlf,bhtf->bhlt", q, past.k[:, :heads])
    return weight * (log - largest[..., None]).exp(), largest


def _chunk(p: Projected, state: Sums | None) -> tuple[Float[Tensor, "B H L V"], Sums]:
    """Tokens in a row: a triangle among themselves, one product with the state."""
    scales = p.scale if state is None else torch.cat([state.scale[..., None], p.scale], -1)
    running = scales.detach().cummax(-1).values[..., -p.scale.shape[-1] :]
    factor = (p.scale[..., None, :] - running[..., None]).tril().exp().tril()
    weight = torch.einsum("bhlf,bhtf->bhlt", p.q, p.k) * factor
    total = weight.sum(-1, keepdim=True)
    if state is None:
        return _of_values(weight, floored(total), p.v), _remembered(p.past, state)
    q = p.q.to(state.keys.dtype) * (state.scale[..., None] - running).exp()[..., None]
    whole = floored(total + torch.einsum("bhlf,bhf->bhl", q, state.keys)[..., None])
    mixed = _of_values(weight, whole, p.v) + _of_values(q, whole, state.values)
    return mixed, _remembered(p.past, state)


def _remembered(p: Past, state: Sums | None) -> Sums:
    """The state after these tokens."""
    scale = p.scale.detach().amax(-1)
    if state is not None:
        scale = torch.maximum(scale, state.scale)
    key = p.k * (p.scale - scale[..., None]).exp()[..., None]
    values, keys = torch.einsum("bhtf,bhtv->bhfv", key, p.v.to(key.dtype)), key.sum(2)
    if state is not None:
        keep = (state.scale - scale).exp()[..., None]
        values, keys = values + keep[..., None] * state.values, keys + keep * state.keys
    return Sums(values, keys, scale)


def _of_values(
    weight: Float[Tensor, "B H L T"], whole: Float[Tensor, "B H L 1"], v: Float[Tensor, "B H T V"]
) -> Float[Tensor, "B H L V"]:
    """Weights become shares before the product with values, not after it.

    Where one token has nearly all of the weight, its slope is the difference of two nearly equal
    numbers, and noise if they were rounded apart.
    """
    return torch.einsum("bhlt,bhtv->bhlv", (weight / whole).to(v.dtype), v)


def _with_own(
    p: Projected, total: Float[Tensor, "B H L"], scale: Float[Tensor, "B H #L"], chunk: int
) -> tuple[Float[Tensor, "B H L 1"], Float[Tensor, "B H L 1"], Float[Tensor, "B H L V"]]:
    """Queries of `chunk` tokens read their own earlier tokens, too.

    What the weights on the past are multiplied by, the weight of all that is read, the own part.
    """
    q, k, v, own = (part.to(total.dtype).unflatten(2, (-1, chunk)) for part in p)
    scale = scale.expand_as(total).unflatten(2, (-1, chunk))
    largest = torch.maximum(scale, own.detach().cummax(-1).values)
    factor = (own[..., None, :] - largest[..., None]).tril().exp().tril()
    # chunks are a token or a few: sums of products, which no matrix unit would do faster
    weight = (q[..., :, None, :] * k[..., None, :, :]).sum(-1) * factor
    kept = (scale - largest).exp()
    whole = floored(kept * total.unflatten(2, (-1, chunk)) + weight.sum(-1))
    read = ((weight / whole[..., None])[..., None] * v[..., None, :, :]).sum(-2)
    return kept.flatten(2)[..., None], whole.flatten(2)[..., None], read.flatten(2, 3)


def floored(total: Float[Tensor, "..."], least: float = 1e-30) -> Float[Tensor, "..."]:
    """A query whose features miss those of every key by 30 digits reads nothing, and not 0 / 0.

    Totals are relative to the largest scale so far, so no drift of the scale reaches the floor.
    """
    return total.clamp(min=least)


def _misplaced(weight: Float[Tensor, "B H Q C T"], own: Bool[Tensor, "B Q T"]) -> Float[Tensor, ""]:
    """Cross-entropy of the right task under the weights on past tokens, summed by task."""
    # a higher floor than elsewhere: the slope of the log multiplies what is left of it
    total = floored(weight.sum(-1), 1e-20)
    share = (weight * own[:, None, :, None]).sum(-1) / total
    # as published: a kernel weight can vanish where a softmax weight would not
    return -(share + 1e-9).log().mean()


@MIXERS.add("linear")
def linear(width: int, heads: int = 8, head_width: int = 0) -> LinearAttention:
    """`head_width` 0 is the published one, as wide as the model."""
    head = head_width or width
    return LinearAttention(width, heads, Elu(head), head, head)


@MIXERS.add("favor")
def favor(
    width: int, heads: int = 8, key_width: int = 0, value_width: int = 0, features: int = 0
) -> LinearAttention:
    """Published: keys a quarter as wide as the model, values as wide, one feature per key."""
    key = key_width or width // 4
    return LinearAttention(width, heads, Favor(key, features or key), key, value_width or width)
