"""ANML: the whole prediction network is fast; a slow network gates its last features.

    answer(x) = W (gate(x) * f(x)) + b      f, W and b take one SGD step per example, gate does not

Both networks read the raw x, so what an example is encoded to is x itself and its gate.
"""

import math

import torch
from torch import Tensor, nn

from onepass.encoders import CHANNELS, Encoder, Norm, cnn
from onepass.learner import Learner
from onepass.learners.inner import Weights, answers, call_again, copies, sgd
from onepass.registry import LEARNERS, Natural, PositiveReal
from onepass.targets import Target
from onepass.tree import span


class Gated(nn.Module):
    """The prediction network: convolutions without norm, times the gate, then linear."""

    def __init__(self, body: Encoder, outputs: int):
        super().__init__()
        self.body, self.head = body, nn.Linear(body.features, outputs)

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        return self.head(self.body(x) * gate)


class ANML(Learner):
    def __init__(
        self, encoder: Encoder, fast: Gated, target: Target, inner_rate: float, segment: int
    ):
        super().__init__()
        self.encoder, self.fast, self.target, self.segment = encoder, fast, target, segment
        self.log_rate = nn.Parameter(torch.tensor(math.log(inner_rate)))

    def encode(self, x):
        return x, super().encode(x).to(x.dtype)

    def hint(self):
        return f"; the inner rate is {self.log_rate.exp():.3g}: a lower inner_rate may help"

    def init_state(self, batch):
        return copies(self.fast, batch)

    # unrolled over the stream, it would be compiled for minutes
    @torch.compiler.disable
    def observe(self, state, z, y):
        # many small steps: in full precision also under autocast
        with torch.autocast(y.device.type, enabled=False):
            rate = self.log_rate.exp()
            if not self.segment:
                return self._learn(state, z, y, rate)
            for start in range(0, y.shape[1], self.segment):
                chunk = span((z, y), start, start + self.segment)
                state = call_again(self._learn, state, *chunk, rate)
            return state

    def _learn(self, state: Weights, z: tuple, y: Tensor, rate: Tensor) -> Weights:
        return sgd(self.fast, self.target, state, z, y, rate)

    @torch.compiler.disable
    def predict(self, state, z):
        with torch.autocast(z[0].device.type, enabled=False):
            return answers(self.fast, state, z)


@LEARNERS.add("anml")
def anml(
    x_shape: tuple[int, ...],
    target: Target,
    inner_rate: PositiveReal = 0.01,
    channels: tuple[int, ...] = CHANNELS,
    strides: tuple[int, ...] = (1, 2, 2, 2, 2),
    norm: Norm = "batch",
    segment: Natural = 0,
) -> ANML:
    """`segment` > 0 stores the inner loop only every so many examples: less memory, more work."""
    if len(x_shape) != 3:
        raise ValueError(f"anml reads images, and this benchmark shows vectors of {x_shape[0]}")
    gate = cnn(x_shape, norm, channels, strides)
    # the last ReLU, before the flattening, becomes a sigmoid
    gate[-2] = nn.Sigmoid()
    body = cnn(x_shape, "none", channels, strides, bias=True)
    return ANML(gate, Gated(body, target.outputs), target, inner_rate, segment)
