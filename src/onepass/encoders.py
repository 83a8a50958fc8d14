"""x to a vector, example by example. Image encoders end flat; vector encoders are an MLP."""

import math
from collections.abc import Callable
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from onepass.encoder_kernel import HAS_KERNEL
from onepass.encoder_ops import first_and_convolution, first_layer

Norm = Literal["batch", "group", "none"]
CHANNELS = (32, 64, 128, 256, 256)
PATCH = 32  # numbers in a patch that are few
MANY = 8_192  # examples of a step, from which on memory is worth more than a pass over it


class Encoder(nn.Sequential):
    """Layers that end in `features` numbers."""

    def __init__(self, *layers: nn.Module, features: int):
        super().__init__(*layers)
        self.features = features

    def forward(self, input: Tensor) -> Tensor:
        layers = list(self)
        if fuses(layers[:3], input):
            done = 4 if len(input) > MANY and _is_plain(layers[3]) else 3
            input, layers = fused(layers[:done], input), layers[done:]
        for layer in layers:
            input = layer(input)
        return input


def fuses(layers: list[nn.Module], x: Tensor) -> bool:
    """Whether there is a kernel for these as a first layer: see `encoder_kernel.py`."""
    if not (HAS_KERNEL and x.is_cuda and x.dtype == torch.float32) or x.requires_grad:
        return False
    if [type(layer) for layer in layers] != [Convolution, nn.BatchNorm2d, nn.ReLU]:
        return False
    convolution, norm, _ = layers
    assert isinstance(convolution, Convolution)
    return (
        norm.training
        and (convolution.in_channels, convolution.stride) == (1, (1, 1))
        and convolution.bias is None
        and convolution.out_channels in (16, 32, 64, 128)
        and x.numel() * convolution.out_channels < 2**31
    )


def _is_plain(layer: nn.Module) -> bool:
    return isinstance(layer, Convolution) and layer.bias is None


def fused(layers: list[nn.Module], x: Tensor) -> Tensor:
    """Convolution, batch-norm and ReLU in one, or these and the convolution after them."""
    convolution, norm, _, *rest = layers
    assert isinstance(convolution, Convolution)
    assert isinstance(norm, nn.BatchNorm2d)
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
    given = x, convolution.weight, norm.weight, norm.bias
    if rest:
        assert isinstance(rest[0], Convolution)
        more = rest[0].weight, rest[0].stride[0], norm.eps, dtype
        out, mean, var, *_ = first_and_convolution(*given, *more)
    else:
        out, mean, var, *_ = first_layer(*given, norm.eps, dtype)
    with torch.no_grad():
        norm.num_batches_tracked.add_(1)  # pyright: ignore[reportOptionalMemberAccess]
        norm.running_mean.lerp_(mean, norm.momentum)  # pyright: ignore
        # as torch does it: the variance of the batch to normalise, of the population to remember
        norm.running_var.lerp_(var * (x.numel() / (x.numel() - 1)), norm.momentum)  # pyright: ignore
    return out


class Convolution(nn.Conv2d):
    """3x3, padded. On a card, one of few channels is a matrix product with the patches it reads.

    The libraries have no good kernel for a single channel: the slope by its 288 weights alone took
    a sixth of a whole step.
    """

    def __init__(self, before: int, after: int, stride: int, bias: bool = False):
        super().__init__(before, after, 3, stride, padding=1, bias=bias)

    def forward(self, input: Tensor) -> Tensor:
        few = 9 * self.in_channels <= PATCH and self.bias is None and not input.requires_grad
        if few and input.is_cuda:
            return by_patches(input, self.weight, self.stride[0])
        return super().forward(input)


def by_patches(
    x: Float[Tensor, "N C H W"], weight: Float[Tensor, "O C 3 3"], stride: int
) -> Float[Tensor, "N O h w"]:
    """The convolution as one product per image, so that its way back is one per image, too."""
    windows = F.pad(x, (1, 1, 1, 1)).unfold(2, 3, stride).unfold(3, 3, stride)
    height, width = windows.shape[2:4]
    patches = rearrange(windows, "n c h w i j -> n (h w) (c i j)")
    # matrix units want whole numbers of eights
    spare = (0, -patches.shape[-1] % 8)
    kernel = F.pad(weight.flatten(1), spare).mT.expand(len(x), -1, -1)
    out = torch.bmm(F.pad(patches, spare), kernel)
    return rearrange(out, "n (h w) o -> n o h w", h=height, w=width)


def make_norm(norm: Norm, channels: int, axes: int) -> nn.Module:
    """`batch` mixes the examples of a call while training; `group` looks at one example alone."""
    if norm == "batch":
        return nn.BatchNorm2d(channels) if axes == 2 else nn.BatchNorm1d(channels)
    if norm == "group":
        return nn.GroupNorm(min(8, channels) if axes == 2 else 1, channels)
    if norm == "none":
        return nn.Identity()
    raise ValueError(f"norm is {norm!r}; there are: {', '.join(get_args(Norm))}")


def mlp(inputs: int, width: int, norm: Norm = "batch") -> Encoder:
    """Three times linear, norm, ReLU."""
    layers = []
    for before in (inputs, width, width):
        layers += [nn.Linear(before, width, bias=False), make_norm(norm, width, 0), nn.ReLU()]
    return Encoder(*layers, features=width)


def cnn(
    x_shape: tuple[int, ...],
    norm: Norm = "batch",
    channels: tuple[int, ...] = CHANNELS,
    strides: tuple[int, ...] = (1, 2, 2, 2, 2),
    bias: bool = False,
) -> Encoder:
    """3x3 convolutions; the published one is 32-64-128-256-256."""
    layers, before = [], x_shape[0]
    for after, stride in zip(channels, strides, strict=True):
        convolution = Convolution(before, after, stride, bias)
        layers += [convolution, make_norm(norm, after, 2), nn.ReLU()]
        before = after
    return _flat(layers, x_shape, channels[-1], math.prod(strides))


def cnn_small(x_shape: tuple[int, ...], norm: Norm = "batch") -> Encoder:
    """A tenth of the work of `cnn`, for small machines."""
    return cnn(x_shape, norm, channels=(16, 32, 64, 64), strides=(2, 2, 2, 2))


def resnet(x_shape: tuple[int, ...], norm: Norm = "batch") -> Encoder:
    """ResNet-18 at half its width, with a 3x3 stem, no max-pooling and stride 2 in every stage."""
    stem = Convolution(x_shape[0], 32, 1)
    layers, before = [stem, make_norm(norm, 32, 2), nn.ReLU()], 32
    for after in (32, 64, 128, 256):
        layers += [_Residual(before, after, 2, norm), _Residual(after, after, 1, norm)]
        before = after
    encoder = _flat(layers, x_shape, 256, 2**4)
    for module in encoder.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return encoder


class _Residual(nn.Module):
    def __init__(self, before: int, after: int, stride: int, norm: Norm):
        super().__init__()
        self.body = nn.Sequential(
            Convolution(before, after, stride),
            make_norm(norm, after, 2),
            nn.ReLU(),
            Convolution(after, after, 1),
            make_norm(norm, after, 2),
        )
        shortcut = nn.Conv2d(before, after, 1, stride, bias=False), make_norm(norm, after, 2)
        self.shortcut = nn.Sequential(*shortcut) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


def _flat(layers: list[nn.Module], x_shape: tuple[int, ...], channels: int, stride: int) -> Encoder:
    # padded 3x3 convolutions round each edge up
    height, width = (math.ceil(edge / stride) for edge in x_shape[1:])
    return Encoder(*layers, nn.Flatten(), features=channels * height * width)


IMAGE_ENCODERS: dict[str, Callable[..., Encoder]] = {
    "cnn": cnn,
    "cnn_small": cnn_small,
    "resnet": resnet,
}


def make_encoder(
    x_shape: tuple[int, ...], width: int, encoder: str = "auto", norm: Norm = "batch"
) -> Encoder:
    """The encoder called `encoder`; `auto` is the CNN for images and the MLP for vectors.

    The MLP is `width` wide; an image encoder has the features its last map has.
    """
    names = ["mlp"] if len(x_shape) == 1 else [*IMAGE_ENCODERS]
    name = names[0] if encoder == "auto" else encoder
    if name not in names:
        choices = ", ".join(names)
        raise ValueError(f"no encoder {name!r} for inputs of shape {x_shape}; there are: {choices}")
    if name == "mlp":
        return mlp(x_shape[0], width, norm)
    return IMAGE_ENCODERS[name](x_shape, norm)


def make_embedder(
    x_shape: tuple[int, ...], width: int, encoder: str = "auto", norm: Norm = "batch"
) -> Encoder:
    """An encoder that ends in `width` features: images are projected, the MLP already does."""
    body = make_encoder(x_shape, width, encoder, norm)
    if len(x_shape) == 1:
        return body
    return Encoder(*body, nn.Linear(body.features, width), features=width)
