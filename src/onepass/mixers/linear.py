"""Linear attention: softmax replaced by a feature map, so that the state is one matrix per head.

    output_t = sum_{s<=t} phi(q_t).phi(k_s) v_s / sum_{s<=t} phi(q_t).phi(k_s)

All of it is computed from logs of features, which may be hundreds apart, and so it is softmax
after all. The state has for each feature the mean of the values, weighted by it, and the log of the
sum of those weights. A query takes shares of features from a state, or of tokens it sees singly:

    output_t = sum_f softmax_f(log phi_f(q_t) + log_f) mean_f
             = sum_s softmax_s(log phi(q_t).phi(k_s)) v_s

Nothing is too small to count beside other things that are as small.
"""

from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from onepass.mixers.base import Asked, Mixed, Mixer, guided_heads
from onepass.mixers.features import Elu, Favor
from onepass.registry import MIXERS

LONGEST = 1_024  # chunk of tokens that look at each other one by one
# a log below any other, yet finite: the difference of two of them is 0, not NaN
LOWEST = -1e30
# products of features may be from e^-61 to e^46, so that slopes, which are over them, have room
# on both sides: of a mean over many queries they are small already
RAISED = 20.0
Logits = Float[Tensor, "..."]


class Means(NamedTuple):
    values: Float[Tensor, "B H F V"]
    log: Float[Tensor, "B H F"]


class Past(NamedTuple):
    log: Float[Tensor, "B H L F"]  # of features of keys
    k: Float[Tensor, "B H L F"]  # features, the largest of each token e^RAISED
    scale: Float[Tensor, "B H L"]  # the log of the largest; no slope, since k has it
    v: Float[Tensor, "B H L V"]


class Projected(NamedTuple):
    q_log: Float[Tensor, "B H L F"]  # of features of queries, relative to the largest
    q: Float[Tensor, "B H L F"]  # those features
    log: Float[Tensor, "B H L F"]
    k: Float[Tensor, "B H L F"]
    scale: Float[Tensor, "B H L"]
    v: Float[Tensor, "B H L V"]

    @property
    def past(self) -> Past:
        return Past(*self[2:])


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
        return Means(zeros(*shape, self.value), zeros(shape) + LOWEST)

    def _project(self, x: Float[Tensor, "B L D"]) -> Projected:
        q, k, v = self._linear(x, self.qkv.weight, self.qkv.bias)
        log, q, scale = self._features(q, v.dtype)
        return Projected(log - scale[..., None], q, *self._past(k, v))

    def _past(self, k: Tensor, v: Tensor) -> Past:
        values = rearrange(v, "b l (h v) -> b h l v", h=self.heads)
        return Past(*self._features(k, v.dtype), values)

    def _linear(
        self, x: Float[Tensor, "B L D"], weight: Float[Tensor, "W D"], bias: Float[Tensor, "W"]
    ) -> tuple[Float[Tensor, "B L _"], ...]:
        """Keys and values, and before them queries where the weights have them."""
        linear, keys, values = nn.functional.linear, self.heads * self.key, self.heads * self.value
        exponents = len(weight) - values
        if not (self.phi.is_steep and torch.is_autocast_enabled(x.device.type)):
            parts = [keys] * (exponents // keys) + [values]
            return linear(x, weight, bias).split(parts, -1)
        steep, plain = zip(
            *(part.split([exponents, values]) for part in (weight, bias)), strict=True
        )
        with torch.autocast(x.device.type, enabled=False):
            found = linear(x.to(weight.dtype), *steep)
        return *found.split(keys, -1), linear(x, *plain)

    def _features(
        self, x: Float[Tensor, "B L HK"], dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Logs; features, under autocast as short as values; the largest log."""
        with torch.autocast(x.device.type, enabled=False):
            heads = rearrange(x, "b l (h k) -> b h l k", h=self.heads)
            heads = heads.to(self.qkv.weight.dtype)
            log = self.phi(heads)
            raised, largest = self.phi.raised(heads, log, RAISED)
            return log, raised.to(dtype), largest

    def step(self, x, state):
        p = self._project(x[:, None])
        with torch.autocast(x.device.type, enabled=False):
            state = _remembered(p.past, state)
            (shares,) = _softmax(_logits_of(state, p))
            mixed = _mean(shares, state.values)
        return self.out(mixed.flatten(1)), state

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
        if x.shape[1] == 0:
            return super().mix(x, queries, stop, own)
        tokens = self._project(x)
        stream, state = self._along(tokens, None)
        return Mixed(stream, *self._answers(queries, tokens.past, state, stop, own))

    def ask(self, x, queries, stop=None, own=None):
        if x.shape[1] == 0:
            return super().ask(x, queries, stop, own)
        # of the stream only keys and values
        first = self.heads * self.key
        past = self._past(*self._linear(x, self.qkv.weight[first:], self.qkv.bias[first:]))
        long = stop is None and x.shape[1] > self.chunk
        with torch.autocast(x.device.type, enabled=False):
            state = _remembered(past, None) if long else None
        return Asked(*self._answers(queries, past, state, stop, own))

    def read_weights(self, x, queries):
        asked, chunk = self._project(queries.flatten(1, 2)), queries.shape[2]
        (shares,) = _softmax(_logits(asked.q, self._project(x).past))
        return shares.unflatten(2, (-1, chunk))

    def _answers(
        self,
        queries: Float[Tensor, "B Q C D"],
        past: Past,
        state: Means | None,
        stop: Int[Tensor, "B Q"] | None,
        own: Bool[Tensor, "B Q T"] | None,
    ) -> Asked:
        """What queries read: of a long past from its state, of a short one token by token."""
        asked, chunk = self._project(queries.flatten(1, 2)), queries.shape[2]
        by_state = stop is None and past.k.shape[2] > self.chunk
        with torch.autocast(queries.device.type, enabled=False):
            # on single tokens only those heads for which they are needed
            guided = guided_heads(self.heads) if own is not None else 0
            heads = guided if by_state else self.heads
            logits = _logits(asked.q[:, :heads], Past(*(part[:, :heads] for part in past)))
            if stop is not None:
                place = torch.arange(past.k.shape[2], device=stop.device)
                later = place >= stop.repeat_interleave(chunk, 1)[..., None]
                logits = logits.masked_fill(later[:, None], LOWEST)
            if by_state:
                assert state is not None
                mixed = _read(asked, state, chunk)
            else:
                shares, own_shares = _softmax(logits, _own_logits(asked, chunk))
                mixed = _mean(shares, past.v) + _of_own(own_shares, asked.v, chunk)
            guidance = queries.new_zeros(())
            if own is not None:
                guidance = _misplaced(logits[:, :guided].unflatten(2, (-1, chunk)), own)
        return Asked(self._out(mixed, chunk), guidance)

    def _along(self, p: Projected, state: Means | None) -> tuple[Float[Tensor, "B L D"], Means]:
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


def _read(p: Projected, state: Means, chunk: int) -> Float[Tensor, "B H L V"]:
    """Queries of `chunk` tokens, all from one state."""
    shares, own = _softmax(_logits_of(state, p), _own_logits(p, chunk))
    return _mean(shares, state.values) + _of_own(own, p.v, chunk)


def _chunk(p: Projected, state: Means | None) -> tuple[Float[Tensor, "B H L V"], Means]:
    """Tokens in a row: a triangle among themselves, and the state of what was before."""
    length = p.k.shape[2]
    seen = torch.ones(length, length, dtype=torch.bool, device=p.k.device).tril()
    logits = _logits(p.q, p.past).masked_fill(~seen, LOWEST)
    if state is None:
        (shares,) = _softmax(logits)
        return _mean(shares, p.v), _remembered(p.past, state)
    shares, earlier = _softmax(logits, _logits_of(state, p))
    return _mean(shares, p.v) + _mean(earlier, state.values), _remembered(p.past, state)


def _remembered(p: Past, state: Means | None) -> Means:
    """The state after these tokens."""
    log = p.log.logsumexp(2)
    if state is not None:
        log = torch.logaddexp(log, state.log)
    share = (p.log - log[:, :, None]).exp()
    values = torch.einsum("bhtf,bhtv->bhfv", share, p.v.to(share.dtype))
    if state is not None:
        values = values + (state.log - log).exp()[..., None] * state.values
    return Means(values, log)


def _logits(q: Float[Tensor, "B H L F"], past: Past) -> Float[Tensor, "B H L T"]:
    """log phi(q).phi(k), by how much more than the largest feature of the query."""
    product = torch.einsum("bhlf,bhtf->bhlt", q, past.k).to(past.scale.dtype)
    return _log(product) + past.scale[:, :, None]


def _own_logits(p: Projected, chunk: int) -> Float[Tensor, "B H L C"]:
    """Of queries of `chunk` tokens on their own tokens so far."""
    q, k, scale = (part.unflatten(2, (-1, chunk)) for part in (p.q, p.k, p.scale))
    # chunks are a token or a few: sums of products, which no matrix unit would do faster
    product = (q[..., :, None, :].to(scale.dtype) * k[..., None, :, :].to(scale.dtype)).sum(-1)
    logits = _log(product) + scale[..., None, :]
    seen = torch.ones(chunk, chunk, dtype=torch.bool, device=logits.device).tril()
    return logits.masked_fill(~seen, LOWEST).flatten(2, 3)


def _logits_of(state: Means, p: Projected) -> Float[Tensor, "B H L F"]:
    """On the features of a state."""
    return p.q_log + state.log[:, :, None]


def _log(product: Float[Tensor, "..."]) -> Logits:
    """Features that miss each other by more than 100 e-folds are taken for just that far apart."""
    return product.clamp(min=torch.finfo(product.dtype).tiny ** 0.7).log() - 2 * RAISED


def _softmax(*logits: Logits) -> tuple[Logits, ...]:
    """Over all parts as one.

    By the log of the sum and not by maximum and sum, which Triton 3.6 cannot always compile into
    one kernel ("PassManager::run failed").
    """
    whole = logits[0].logsumexp(-1, keepdim=True)
    for part in logits[1:]:
        whole = torch.logaddexp(whole, part.logsumexp(-1, keepdim=True))
    # shares before the product with values, not outputs after it: where one token has nearly all,
    # its slope is a small difference, and noise if its parts were rounded apart
    return tuple((part - whole).exp() for part in logits)


def _mean(
    share: Float[Tensor, "B H L T"], values: Float[Tensor, "B H T V"]
) -> Float[Tensor, "B H L V"]:
    """Of the values of tokens, or of the features of a state."""
    return torch.einsum("bhlt,bhtv->bhlv", share.to(values.dtype), values)


def _of_own(
    share: Float[Tensor, "B H L C"], v: Float[Tensor, "B H L V"], chunk: int
) -> Float[Tensor, "B H L V"]:
    share, v = (part.unflatten(2, (-1, chunk)) for part in (share, v))
    return (share[..., None] * v[..., None, :, :].to(share.dtype)).sum(-2).flatten(2, 3)


def _misplaced(logits: Float[Tensor, "B H Q C T"], own: Bool[Tensor, "B Q T"]) -> Float[Tensor, ""]:
    """Cross-entropy of the right task under the weights on past tokens, summed by task."""
    (weight,) = _softmax(logits)
    share = (weight * own[:, None, :, None]).sum(-1)
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
