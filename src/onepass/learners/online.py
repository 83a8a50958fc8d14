"""Online SGD: a plain network that takes one gradient step per example, and was never meta-trained.

What people would try first, and so what everything else is compared with.
"""

import torch
from torch import nn

from onepass.encoders import Norm, make_encoder
from onepass.learner import Learner
from onepass.learners.inner import answers, copies, sgd
from onepass.registry import LEARNERS, Positive, PositiveReal
from onepass.targets import Target


class Online(Learner):
    """The state is a whole network; all episodes start from the same random one."""

    rate: torch.Tensor

    def __init__(self, network: nn.Module, target: Target, rate: float):
        super().__init__()
        self.target, self.encoder, self.network = target, nn.Identity(), network
        # nothing here learns over episodes
        self.network.requires_grad_(False)
        self.register_buffer("rate", torch.tensor(rate), persistent=False)

    def hint(self):
        return f"; the rate is {self.rate:.3g}: a lower learner.rate may help"

    def init_state(self, batch):
        return copies(self.network, batch)

    def observe(self, state, z, y):
        with torch.autocast(z.device.type, enabled=False):
            return sgd(self.network, self.target, state, (z,), y, self.rate)

    def predict(self, state, z):
        with torch.autocast(z.device.type, enabled=False):
            return answers(self.network, state, (z,))


@LEARNERS.add("online")
def online(
    x_shape: tuple[int, ...],
    target: Target,
    rate: PositiveReal = 0.01,
    width: Positive = 512,
    encoder: str = "auto",
    norm: Norm = "group",
) -> Online:
    """Batch-norm would need more than one example, so the default looks at each alone."""
    if norm == "batch":
        raise ValueError("online learns one example at a time: norm is group or none, not batch")
    body = make_encoder(x_shape, width, encoder, norm)
    return Online(nn.Sequential(body, nn.Linear(body.features, target.outputs)), target, rate)
