"""What a sequence mixer is."""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from onepass.tree import State, fork


class Mixed(NamedTuple):
    """What `mix` gives: the stream, the queries, and how far attention is from the right task."""

    stream: Float[Tensor, "B L D"]
    queries: Float[Tensor, "B Q C D"]
    guidance: Float[Tensor, ""]


class Asked(NamedTuple):
    """The same without the stream."""

    queries: Float[Tensor, "B Q C D"]
    guidance: Float[Tensor, ""]


def guided_heads(heads: int) -> int:
    """How many heads the attention loss is for: the first half, as in the paper."""
    return max(1, heads // 2)


class Mixer(nn.Module, ABC):
    """Carries information along a stream of tokens in a state.

    `step` is the definition. The others mean the same and may be overridden for speed:

    - `scan(x, s)` is `step` on x[:, 0], x[:, 1], ... in turn;
    - `peek(x, s)` is `scan` on each short chunk x[:, q] separately, all from s, states dropped;
    - `mix(x, queries, stop)` is a scan of the whole stream from the start, with query q peeked
      after the first stop[:, q] tokens, or after all of them where stop is None;
    - `ask(x, queries, stop)` is `mix` where nobody reads what the stream becomes.

    A mixer that attends to single past tokens also says, where `own` marks the stream tokens of
    each query's own task, how much weight it misplaces (the paper's attention loss); for all
    others this guidance is 0.
    """

    @abstractmethod
    def init_state(self, batch: int) -> State: ...

    @abstractmethod
    def step(self, x: Float[Tensor, "B D"], state: State) -> tuple[Float[Tensor, "B D"], State]: ...

    def scan(self, x: Float[Tensor, "B L D"], state: State) -> tuple[Float[Tensor, "B L D"], State]:
        outputs = []
        for token in x.unbind(dim=1):
            output, state = self.step(token, state)
            outputs.append(output)
        return torch.stack(outputs, dim=1) if outputs else x, state

    def peek(self, x: Float[Tensor, "B Q C D"], state: State) -> Float[Tensor, "B Q C D"]:
        output, _ = self.scan(x.flatten(0, 1), fork(state, x.shape[1]))
        return output.unflatten(0, x.shape[:2])

    def mix(
        self,
        x: Float[Tensor, "B L D"],
        queries: Float[Tensor, "B Q C D"],
        stop: Int[Tensor, "B Q"] | None = None,
        own: Bool[Tensor, "B Q L"] | None = None,
    ) -> Mixed:
        if stop is None:
            output, state = self.scan(x, self.init_state(x.shape[0]))
            return Mixed(output, self.peek(queries, state), x.new_zeros(()))
        state, done = self.init_state(x.shape[0]), 0
        outputs, answers = [], queries
        for cut in stop.unique().tolist():
            output, state = self.scan(x[:, done:cut], state)
            outputs.append(output)
            answers = torch.where(
                (stop == cut)[..., None, None], self.peek(queries, state), answers
            )
            done = cut
        output, _ = self.scan(x[:, done:], state)
        return Mixed(torch.cat([*outputs, output], dim=1), answers, x.new_zeros(()))

    def ask(
        self,
        x: Float[Tensor, "B L D"],
        queries: Float[Tensor, "B Q C D"],
        stop: Int[Tensor, "B Q"] | None = None,
        own: Bool[Tensor, "B Q L"] | None = None,
    ) -> Asked:
        return Asked(*self.mix(x, queries, stop, own)[1:])

    def read_weights(
        self, x: Float[Tensor, "B L D"], queries: Float[Tensor, "B Q C D"]
    ) -> Float[Tensor, "B H Q C L"] | None:
        """Which share of what a query reads of the whole stream comes from each token of it.

        Shares sum to 1 over the stream; None where single tokens cannot be told apart. A stack
        speaks for its last layer.
        """
        return None
