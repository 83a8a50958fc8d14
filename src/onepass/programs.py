"""A learner as programs that run without its source: encode, observe and predict by `torch.export`.

For learners whose state does not grow, since a program takes inputs of one shape: one example, any
number of queries.
"""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from onepass.learner import Learner
from onepass.tree import State


class Encode(nn.Module):
    def __init__(self, learner: Learner):
        super().__init__()
        self.learner = learner

    def forward(self, x: Tensor) -> State:
        """[1, N, *x]"""
        return self.learner.encode(x)


class Observe(Encode):
    def forward(self, state: State, z: Tensor, y: Tensor) -> State:  # pyright: ignore
        """One example, encoded, and its y as it is."""
        return self.learner.observe(state, z, self.learner.encode_y(y))


class Predict(Encode):
    def forward(self, state: State, z: Tensor) -> Tensor:  # pyright: ignore
        """[1, Q, O]"""
        return self.learner.predict(state, z)


@torch.no_grad()
def one_example(learner: Learner, x_shape: tuple[int, ...]) -> tuple[State, State, Tensor]:
    """A state, an x and a y, all blank; refused where a state grows."""
    empty, y = learner.init_state(1), learner.target.blank(1)
    z = learner.encode(torch.zeros(1, 1, *x_shape))
    state = learner.observe(empty, z, learner.encode_y(y))
    if [leaf.shape for leaf in tree_leaves(state)] != [leaf.shape for leaf in tree_leaves(empty)]:
        raise ValueError(
            "the state of this learner grows with the stream, and a program takes one shape: "
            "export a learner of constant state, such as sequence with mixer=delta"
        )
    return state, z, y


@torch.no_grad()
def write_programs(learner: Learner, x_shape: tuple[int, ...], out: Path) -> None:
    """encode.pt2, observe.pt2 and predict.pt2; what they do is what the learner does."""
    learner = learner.eval()
    state, z, y = one_example(learner, x_shape)
    fixed = tree_map(lambda leaf: None, state)
    many = torch.export.Dim("many", min=1, max=100_000)
    programs = {
        "encode": (Encode(learner), (torch.zeros(1, 2, *x_shape),), ({1: many},)),
        "observe": (Observe(learner), (state, z, y), None),
        "predict": (Predict(learner), (state, z.expand(1, 2, *z.shape[2:])), (fixed, {1: many})),
    }
    for name, (module, inputs, dynamic) in programs.items():
        program = torch.export.export(module, inputs, dynamic_shapes=dynamic)
        torch.export.save(program, out / f"{name}.pt2")
