"""The learner: three verbs on a state, and what is built from them."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from onepass.episodes import Episodes
from onepass.targets import Classes, Target
from onepass.tree import State, span


class Encoded(NamedTuple):
    """Episodes as a learner reads them: everything that needs no state, done once."""

    z: State  # [B, N, ...] the stream's inputs
    y: State  # [B, N, ...] and its targets
    queries: State  # [B, Q, ...]
    answers: (
        State  # [B, Q, ...] their targets; only earlier tokens of a long code are ever looked at
    )


class Learner(nn.Module, ABC):
    """Learns from a stream of examples, answers queries at any moment.

    Laws that hold in eval mode, for every learner (see `onepass.checks`):

    - chunking is invisible: observing N examples at once, or in any pieces, gives the same state;
    - asking is free: `predict` leaves the state as it was, and no query sees another;
    - `episode` answers as `observe` and `predict` would, stop by stop.
    """

    target: Target
    encoder: nn.Module
    tokens_per_example: int = 1
    # methods that a compiled step compiles on their own: what a loop does again and again
    loop_bodies: tuple[str, ...] = ()

    def encode(self, x: Tensor) -> State:
        """What the verbs need of each x, one example at a time: [B, N, *X] -> [B, N, ...]."""
        return self.encoder(x.flatten(0, 1)).unflatten(0, x.shape[:2])

    def encode_y(self, y: Tensor) -> State:
        """The same for targets: [B, N, ...] -> [B, N, ...]."""
        return y

    @abstractmethod
    def init_state(self, batch: int) -> State:
        """The state before the first example."""

    @abstractmethod
    def observe(self, state: State, z: State, y: State) -> State:
        """The state after N >= 0 more examples, in order."""

    @abstractmethod
    def predict(self, state: State, z: State) -> Float[Tensor, "B Q O"]:
        """Answers to Q queries, each on its own. Of a code of several tokens, the first."""

    def spell(self, state: State, z: State, answers: State) -> Tensor:
        """Predictions as `target.loss` takes them: of each code token, given those before it."""
        return self.predict(state, z)

    def score(self, state: State, z: State, codes: Int[Tensor, "B K C"]) -> Float[Tensor, "B Q K"]:
        """How well each code of the book answers each query, as a log-likelihood."""
        assert isinstance(self.target, Classes)
        return self.target.rank(self.predict(state, z), codes)

    def widen(self, state: State, classes: int) -> State | None:
        """The state with room for this many one-token codes; None where each needs training.

        All that is new in it has seen no example.
        """
        return None

    def forget(self, state: State, code: int) -> State | None:
        """The state as if no example of a one-token code had been seen; None if it cannot tell."""
        return None

    def hint(self) -> str:
        """Words on what may be wrong when answers are not finite."""
        return ""

    def read_weights(self, encoded: Encoded) -> Float[Tensor, "B H Q N"] | None:
        """Which share of what a query reads comes from each example; None where nobody can say."""
        return None

    def episode(
        self,
        encoded: Encoded,
        stop: Int[Tensor, "B Q"] | None = None,
        own: Bool[Tensor, "B Q N"] | None = None,
    ) -> tuple[Tensor, Float[Tensor, ""]]:
        """Every query answered after its own first `stop` examples; and the guidance loss, if any.

        Without stops, after the whole stream. Learners that can do all stops in one parallel pass
        override this.
        """
        state, done, spelled = self.init_state(len(tree_leaves(encoded.queries)[0])), 0, None
        if stop is None:
            state = self.observe(state, encoded.z, encoded.y)
            spelled = self.spell(state, encoded.queries, encoded.answers)
            return spelled, spelled.new_zeros(())
        for cut in stop.unique().tolist():
            state = self.observe(state, span(encoded.z, done, cut), span(encoded.y, done, cut))
            now = self.spell(state, encoded.queries, encoded.answers)
            asked = (stop == cut).view(*stop.shape, *[1] * (now.dim() - 2))
            spelled = now if spelled is None else torch.where(asked, now, spelled)
            done = cut
        assert spelled is not None
        return spelled, spelled.new_zeros(())


def most_classes(learner: Learner) -> int | None:
    """How many it can tell apart at use; None for any number."""
    assert isinstance(learner.target, Classes)
    codes = learner.target.codes
    grows = learner.widen(learner.init_state(1), codes + 1) is not None
    return None if grows else codes


def count_parameters(learner: Learner) -> int:
    """Those that are meta-trained."""
    return sum(p.numel() for p in learner.parameters() if p.requires_grad)


def encode_episodes(learner: Learner, episodes: Episodes) -> Encoded:
    """Stream and queries in one call each, so that batch statistics see both."""
    length = episodes.train.x.shape[1]
    z = learner.encode(torch.cat([episodes.train.x, episodes.test.x], dim=1))
    y = learner.encode_y(torch.cat([episodes.train.y, episodes.test.y], dim=1))
    return Encoded(span(z, 0, length), span(y, 0, length), span(z, length), span(y, length))


def states(learner: Learner, encoded: Encoded, batch: int, at: Sequence[int]) -> Iterator[State]:
    """The state after the first n examples, for each n in `at` (ascending), in one pass."""
    state = learner.init_state(batch)
    for start, stop in pairwise([0, *at]):
        state = learner.observe(state, span(encoded.z, start, stop), span(encoded.y, start, stop))
        yield state


def probe(learner: Learner, episodes: Episodes, at: Sequence[int]) -> Iterator[Tensor]:
    """The answers to all queries after the first n examples, for each n in `at` (ascending)."""
    encoded = encode_episodes(learner, episodes)
    for state in states(learner, encoded, episodes.train.x.shape[0], at):
        yield learner.spell(state, encoded.queries, encoded.answers)
