"""Continual learning as sequence modelling: the state of a sequence model is what was learned.

The stream x1, y1, x2, y2, ... becomes tokens; a query is one more x, read from the state as it is.
"""

from functools import partial
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onepass.encoders import Encoder, Norm, make_embedder
from onepass.learner import Learner
from onepass.mixers.base import Mixer
from onepass.mixers.stack import Block, Position, Stack
from onepass.registry import LEARNERS, MIXERS, Natural, Positive, Share
from onepass.targets import Classes, Target


class Interleaved(nn.Module):
    """One token per x, then one per token of y, as in the paper."""

    def __init__(self, width: int, target: Target):
        super().__init__()
        self.per_example = 1 + target.tokens

    def stream(self, z: Tensor, y: Tensor) -> Tensor:
        return torch.cat([z[:, :, None], y], dim=2).flatten(1, 2)

    def queries(self, z: Tensor, answers: Tensor) -> Tensor:
        return torch.cat([z[:, :, None], answers[:, :, :-1]], dim=2)


class Joint(nn.Module):
    """One token per example, half of it x and half of it y; a query is a token whose y is unknown.

    Halves and not a sum: of many codes in few dimensions no product could take x out of the sum.
    """

    def __init__(self, width: int, target: Target):
        super().__init__()
        if target.tokens > 1:
            raise ValueError(
                f"joint tokens hold codes of 1 token, and code_length is {target.tokens}"
            )
        self.per_example = 1
        self.x, self.y = (nn.Linear(width, width // 2) for _ in range(2))
        self.unknown = nn.Parameter(torch.zeros(width // 2))

    def stream(self, z: Tensor, y: Tensor) -> Tensor:
        return torch.cat([self.x(z), self.y(y[:, :, 0])], -1)

    def queries(self, z: Tensor, answers: Tensor) -> Tensor:
        x = self.x(z)
        return torch.cat([x, self.unknown.to(x.dtype).expand_as(x)], -1)[:, :, None]


class SequenceLearner(Learner):
    def __init__(
        self,
        encoder: Encoder,
        target: Target,
        tokens: Interleaved | Joint,
        mixer: Mixer,
        norm: Norm = "batch",
        tied: bool = False,
    ):
        super().__init__()
        self.encoder, self.target, self.tokens, self.mixer = encoder, target, tokens, mixer
        self.tokens_per_example, self.tied = tokens.per_example, tied
        self.embed_y = target.embedding(encoder.features, norm)
        self.head = nn.Linear(encoder.features, encoder.features if tied else target.outputs)

    def encode_y(self, y):
        return self.embed_y(y)

    def init_state(self, batch):
        return self.mixer.init_state(batch)

    def observe(self, state, z, y):
        _, state = self.mixer.scan(self.tokens.stream(z, y), state)
        return state

    def predict(self, state, z):
        return self._answer(self.mixer.peek(self._alone(z), state))[:, :, 0]

    def spell(self, state, z, answers):
        return self._spelled(self._answer(self.mixer.peek(self.tokens.queries(z, answers), state)))

    def score(self, state, z, codes):
        if self.target.tokens == 1:
            return super().score(state, z, codes)
        return torch.stack([self._likelihood(state, z, code) for code in codes.unbind(1)], -1)

    def episode(self, encoded, stop=None, own=None):
        per_example = self.tokens_per_example
        stream = self.tokens.stream(encoded.z, encoded.y)
        queries = self.tokens.queries(encoded.queries, encoded.answers)
        own = None if own is None else own.repeat_interleave(per_example, dim=2)
        stop = None if stop is None else stop * per_example
        asked = self.mixer.ask(stream, queries, stop, own)
        return self._spelled(self._answer(asked.queries)), asked.guidance

    def read_weights(self, encoded):
        stream = self.tokens.stream(encoded.z, encoded.y)
        queries = self.tokens.queries(encoded.queries, encoded.answers)
        weights = self.mixer.read_weights(stream, queries)
        if weights is None:
            return None
        # an example counts with all its tokens; of a code, its first token is asked for
        return weights[:, :, :, 0].unflatten(-1, (-1, self.tokens_per_example)).sum(-1)

    def _alone(self, z: Tensor) -> Tensor:
        """Queries with nothing of their answer given."""
        return self.tokens.queries(z, z.new_zeros(*z.shape[:2], 1, z.shape[-1]))

    def _answer(self, mixed: Tensor) -> Tensor:
        """Scores of all outputs; tied, by how like the vector of each code the answer is."""
        answer = self.head(mixed)
        if not self.tied:
            return answer
        codes = cast(Tensor, self.embed_y.weight)
        return F.linear(answer, codes) * answer.shape[-1] ** -0.5

    def _spelled(self, logits: Tensor) -> Tensor:
        return logits if self.target.tokens > 1 else logits[:, :, 0]

    def _likelihood(self, state, z: Tensor, code: Tensor) -> Tensor:
        """Log-likelihood of one code per episode, for every query."""
        code = code[:, None].expand(-1, z.shape[1], -1)
        logits = self.spell(state, z, self.embed_y(code)).log_softmax(-1)
        return logits.gather(-1, code[..., None])[..., 0].sum(-1)


@LEARNERS.add("sequence")
def sequence(
    x_shape: tuple[int, ...],
    target: Target,
    mixer: str = "attention",
    mixer_options: dict[str, Any] | None = None,
    width: Positive = 512,
    layers: Positive = 4,
    heads: Positive = 8,
    hidden: Natural = 0,
    dropout: Share = 0.1,
    encoder: str = "auto",
    norm: Norm = "batch",
    block_norm: Literal["none", "layer"] = "none",
    tokens: Literal["interleaved", "joint"] = "interleaved",
    positions: bool = True,
    vocabulary: Natural = 0,
    code_length: Positive = 1,
    tied: bool = False,
) -> SequenceLearner:
    """Any mixer, stacked. `hidden` 0 is twice the width; `vocabulary` 0 is one token per class.

    `tied` answers are compared with the vectors that codes are read as: what is learned of one code
    holds for all, which pays where there are many.

    Without `positions` no stream is too long for what was meta-trained; then tokens must be joint,
    since nothing else would say which y belongs to which x.
    """
    if not positions and tokens == "interleaved":
        raise ValueError("without positions nothing says which y belongs to which x: tokens=joint")
    if width < 2 or width % 2:
        raise ValueError(f"width is {width}; the position code needs an even one")
    if isinstance(target, Classes):
        target = target.coded(vocabulary, code_length)
    elif tied:
        raise ValueError(f"tied=true is for classes, whose codes have vectors, not for {target}")
    options, hidden = mixer_options or {}, hidden or 2 * width
    if "heads" in MIXERS.options(mixer):
        options = {"heads": heads, **options}
    blocks = [
        Block(MIXERS.build(mixer, width, **options), width, hidden, dropout, block_norm)
        for _ in range(layers)
    ]
    form = Interleaved if tokens == "interleaved" else Joint
    return SequenceLearner(
        make_embedder(x_shape, width, encoder, norm),
        target,
        form(width, target),
        Stack([*([Position(width)] if positions else []), *blocks]),
        norm,
        tied,
    )


LEARNERS.add("transformer")(sequence)
LEARNERS.add("transformer_s")(partial(sequence, width=256, layers=2, heads=4))
LEARNERS.add("transformer_m")(partial(sequence, layers=2))
LEARNERS.add("transformer_xl")(partial(sequence, width=1024, heads=16))
LEARNERS.add("linear_transformer")(partial(sequence, mixer="linear"))
LEARNERS.add("performer")(partial(sequence, mixer="favor"))
