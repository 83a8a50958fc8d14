"""What y is: how to embed it, how to read a prediction of it, how to score that."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from onepass.encoders import Norm, mlp
from onepass.episodes import Episodes
from onepass.sampling import distinct

MOST_CODES = 2**20  # a book is drawn from all of them


@dataclass(frozen=True)
class Classes:
    """One of `classes` classes, named in each episode by a fresh random code.

    A code is `length` tokens over a vocabulary; by default one token, one per class. With one
    token y is [B, N] and a prediction [B, Q, V]; with more they are [B, N, C] and [B, Q, C, V].
    """

    classes: int
    vocabulary: int = 0  # 0: as many tokens as classes
    length: int = 1

    def __post_init__(self):
        if self.classes < 1 or self.length < 1 or self.vocabulary < 0:
            raise ValueError(
                f"{self.classes} classes, code_length {self.length}: counts start at 1"
            )
        if self.codes > MOST_CODES:
            raise ValueError(
                f"{self.length} tokens over a vocabulary of {self.outputs} make more than "
                f"{MOST_CODES:,} codes: lower vocabulary or code_length"
            )
        if self.codes < self.classes:
            raise ValueError(
                f"{self.classes} classes need as many codes, and {self.length} token(s) over a "
                f"vocabulary of {self.outputs} make only {self.codes}: "
                "raise vocabulary or code_length, or lower tasks"
            )

    def __str__(self) -> str:
        return f"{self.classes} classes, codes of {self.length} token(s) over {self.outputs}"

    @property
    def outputs(self) -> int:
        return self.vocabulary or self.classes

    @property
    def tokens(self) -> int:
        return self.length

    @property
    def codes(self) -> int:
        """How many different codes there are."""
        return self.outputs**self.length

    def code(self, number: Int[Tensor, "*n"]) -> Int[Tensor, "*n C"]:
        """The code of each number: its digits."""
        if self.length == 1:
            return number[..., None]
        place = self.outputs ** torch.arange(self.length, device=number.device)
        return number[..., None] // place % self.outputs

    def told(self, y: Int[Tensor, "B N"]) -> Int[Tensor, "..."]:
        """Numbers of codes in the form that a stream has them."""
        return y if self.length == 1 else self.code(y)

    def fits(self, asked: object) -> bool:
        """Whether a learner with this target can answer what is asked."""
        return isinstance(asked, Classes)

    def coded(self, vocabulary: int, length: int) -> "Classes":
        """The same classes under other codes."""
        return replace(self, vocabulary=vocabulary, length=length)

    def embedding(self, width: int, norm: Norm) -> nn.Module:
        return CodeEmbedding(self.outputs, width)

    def blank(self, count: int) -> Int[Tensor, "..."]:
        """Targets of the right form that say nothing, for one episode."""
        shape = (1, count) if self.length == 1 else (1, count, self.length)
        return torch.zeros(shape, dtype=torch.long)

    def draw_codes(self, batch: int, classes: int, rng: torch.Generator) -> Int[Tensor, "B K C"]:
        """A code book per episode: `classes` different codes, uniform."""
        if classes > self.codes:
            raise ValueError(
                f"an episode of {classes} classes, and the learner has only "
                f"{self.codes} codes: lower tasks"
            )
        return self.code(distinct((batch,), self.codes, classes, rng))

    def label(self, episodes: Episodes, classes: int, rng: torch.Generator) -> Episodes:
        """Class ids replaced by codes from a fresh book."""
        codes = self.draw_codes(episodes.train.y.shape[0], classes, rng)
        return Episodes(
            episodes.train._replace(y=self.spell(episodes.train.y, codes)),
            episodes.test._replace(y=self.spell(episodes.test.y, codes)),
            codes,
        )

    def spell(self, classes: Int[Tensor, "B N"], codes: Int[Tensor, "B K C"]) -> Int[Tensor, "..."]:
        """The code of each class, [B, N] where it is one token, [B, N, C] otherwise."""
        rows = torch.arange(len(codes), device=codes.device)[:, None]
        spelled = codes[rows, classes]
        return spelled[..., 0] if self.length == 1 else spelled

    def rank(
        self, prediction: Float[Tensor, "B Q V"], codes: Int[Tensor, "B K 1"]
    ) -> Float[Tensor, "B Q K"]:
        """The log-likelihood of each one-token code of the book."""
        scores = prediction.log_softmax(-1)
        return scores.gather(-1, codes.mT.expand(-1, prediction.shape[1], -1))

    def decode(self, prediction: Tensor) -> Tensor:
        return prediction.softmax(-1)

    def loss(self, prediction: Tensor, y: Tensor) -> Float[Tensor, "B Q"]:
        tokens = F.cross_entropy(prediction.flatten(0, -2), y.flatten(), reduction="none")
        return tokens.view(*y.shape[:2], -1).mean(-1)

    def slope(self, prediction: Float[Tensor, "B Q V"], y: Int[Tensor, "B Q"]) -> Tensor:
        """The gradient of the loss of each query by its prediction."""
        return prediction.softmax(-1) - F.one_hot(y, self.outputs).to(prediction.dtype)

    def error(self, prediction: Tensor, y: Tensor) -> Float[Tensor, "B Q"]:
        wrong = prediction.argmax(-1) != y
        return wrong.view(*y.shape[:2], -1).any(-1).to(prediction.dtype)


class CodeEmbedding(nn.Embedding):
    """Class tokens [B, N] or codes [B, N, C] to [B, N, C, D]."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.view(*input.shape[:2], -1))


class VectorEmbedding(nn.Module):
    """Vectors [B, N, O] to one token each, [B, N, 1, D]."""

    def __init__(self, outputs: int, width: int, norm: Norm):
        super().__init__()
        self.body = mlp(outputs, width, norm)

    def forward(self, y: Tensor) -> Tensor:
        return self.body(y.flatten(0, 1)).unflatten(0, y.shape[:2])[:, :, None]


def as_is(prediction: Tensor) -> Tensor:
    return prediction


def direction(prediction: Tensor) -> Tensor:
    # near the origin the direction is noise, so the norm is floored; squared, since the second
    # derivative of a norm is not finite at 0
    return prediction / prediction.square().sum(-1, keepdim=True).clamp(min=0.01).sqrt()


def squared_error(answer: Tensor, y: Tensor) -> Tensor:
    return (answer - y).square().mean(-1)


def cosine_error(answer: Tensor, y: Tensor) -> Tensor:
    return 1 - (answer * y).sum(-1)


@dataclass(frozen=True)
class Vector:
    """`outputs` numbers: `decode` makes an answer of what a network gives, `distance` scores it."""

    outputs: int
    decode: Callable[[Tensor], Tensor] = as_is
    distance: Callable[[Tensor, Tensor], Tensor] = squared_error
    kind: str = "numbers"
    tokens: int = 1

    def __str__(self) -> str:
        return f"{self.outputs} {self.kind}"

    def embedding(self, width: int, norm: Norm) -> nn.Module:
        return VectorEmbedding(self.outputs, width, norm)

    def blank(self, count: int) -> Float[Tensor, "1 N O"]:
        """Targets of the right form that say nothing, for one episode."""
        return torch.zeros(1, count, self.outputs)

    def told(self, y: Float[Tensor, "B N O"]) -> Float[Tensor, "B N O"]:
        """Already in the form that a stream has them."""
        return y

    def fits(self, asked: object) -> bool:
        """Whether a learner with this target can answer what is asked."""
        return asked == self

    def label(self, episodes: Episodes, classes: int, rng: torch.Generator) -> Episodes:
        return episodes

    def loss(self, prediction: Tensor, y: Tensor) -> Float[Tensor, "B Q"]:
        return self.distance(self.decode(prediction), y)

    def slope(self, prediction: Float[Tensor, "B Q O"], y: Float[Tensor, "B Q O"]) -> Tensor:
        """The gradient of the loss of each query by its prediction."""
        return torch.func.grad(lambda answer: self.loss(answer, y).sum())(prediction)

    def error(self, prediction: Tensor, y: Tensor) -> Float[Tensor, "B Q"]:
        return self.loss(prediction, y)


def pixels(outputs: int) -> Vector:
    """Grey values in [-1, 1]."""
    return Vector(outputs, decode=torch.tanh, kind="pixels")


def angle() -> Vector:
    """A direction, as (cos, sin)."""
    return Vector(2, decode=direction, distance=cosine_error, kind="numbers that are an angle")


Target = Classes | Vector
