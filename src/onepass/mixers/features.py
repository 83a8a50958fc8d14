"""Feature maps of linear attention, as logs, and raised until the largest of a token is e^`by`."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

Heads = Float[Tensor, "B H L _"]


class Elu(nn.Module):
    """elu(x) + 1 (Katharopoulos et al. 2020), taken as a log: e^x vanishes beside 1, x does not."""

    is_steep = False

    def __init__(self, width: int):
        super().__init__()
        self.features = width

    def forward(self, x: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
        return torch.where(x > 0, x.clamp(min=0).log1p(), x)

    def raised(self, x: Heads, log: Heads, by: float) -> tuple[Heads, Float[Tensor, "B H L"]]:
        """Features, with first slopes alone, and the largest log, without.

        From x and not from its log, by one exponential: nothing else is done as often.
        """
        at = x.detach()
        largest = self(at.amax(-1))
        # the slope of elu(x) + 1 is e^x below 0 and 1 above; said, for autograd would take both
        slope = (at.clamp(max=0) - largest[..., None] + by).exp()
        return slope * (1 + at.relu()) + slope * (x - at), largest


class Favor(nn.Module):
    """FAVOR+ (Choromanski et al. 2021): positive features whose products estimate e^{q.k / sqrt d}.

    With orthogonal directions w of Gaussian length and u = w.x d^{-1/4}, the features are
    e^{u - |x|^2 / (2 sqrt d)} and e^{-u - |x|^2 / (2 sqrt d)}, over the root of their number. The
    directions are drawn once and saved with the weights.
    """

    # exponents of tens: rounded to 8 bits, features would be off by a tenth
    is_steep = True
    directions: Tensor

    def __init__(self, width: int, features: int):
        super().__init__()
        if features % 2:
            raise ValueError(f"features is {features}; they come in pairs, so it must be even")
        self.features, self.width = features, width
        self.register_buffer("directions", orthogonal_gaussian(features // 2, width))

    def forward(self, x: Float[Tensor, "B H L K"]) -> Float[Tensor, "B H L F"]:
        x = x * self.width**-0.25
        along = torch.einsum("bhlk,fk->bhlf", x, self.directions.to(x.dtype))
        size = x.square().sum(-1, keepdim=True) / 2 + math.log(self.features) / 2
        return torch.cat([along, -along], -1) - size

    def raised(self, x: Heads, log: Heads, by: float) -> tuple[Heads, Float[Tensor, "B H L"]]:
        largest = log.detach().amax(-1)
        return (log - largest[..., None] + by).exp(), largest


def orthogonal_gaussian(rows: int, width: int) -> Float[Tensor, "rows width"]:
    """Rows with the lengths of Gaussian vectors, orthogonal within each block of `width`."""
    blocks = [
        torch.linalg.qr(torch.randn(width, width, dtype=torch.float64)).Q
        for _ in range(math.ceil(rows / width))
    ]
    lengths = torch.randn(rows, width, dtype=torch.float64).norm(dim=-1, keepdim=True)
    return (torch.cat(blocks)[:rows] * lengths).float()
