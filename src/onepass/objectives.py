"""What meta-training asks: when each query is put, and where attention should look."""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from onepass.episodes import Episodes
from onepass.learner import Learner, encode_episodes

Objective = Literal["final", "midstream", "anytime"]


class MetaLoss(NamedTuple):
    loss: Float[Tensor, ""]  # of the answers
    guidance: Float[Tensor, ""]  # of the attention
    error: Float[Tensor, ""]  # what a person would count


def final(episodes: Episodes, tasks: int, rng: torch.Generator) -> None:
    """Every query after the whole stream."""


def midstream(episodes: Episodes, tasks: int, rng: torch.Generator) -> Int[Tensor, "B Q"]:
    """Each query at the end of its own or of a random later task, all equally likely."""
    task = episodes.train.task
    place = torch.arange(1, task.shape[1] + 1, device=task.device).expand_as(task)
    end = place.new_zeros(len(task), tasks).scatter_reduce(1, task, place, "amax")
    own = end.gather(1, episodes.test.task)
    keys = torch.rand(*own.shape, tasks, generator=rng, device=own.device)
    later = end[:, None] >= own[..., None]
    choice = keys.masked_fill(~later, -1).argmax(-1)
    return end.gather(1, choice)


def anytime(episodes: Episodes, tasks: int, rng: torch.Generator) -> Int[Tensor, "B Q"]:
    """Each query after the first example of its task or any later one, all equally likely."""
    task = episodes.train.task
    place = torch.arange(task.shape[1], device=task.device).expand_as(task)
    first = torch.full_like(place[:, :1], task.shape[1]).expand(-1, tasks).contiguous()
    begin = first.scatter_reduce(1, task, place, "amin").gather(1, episodes.test.task)
    share = torch.rand(begin.shape, generator=rng, device=begin.device)
    # a share can round to 1
    later = (share * (task.shape[1] - begin)).long().clamp(max=task.shape[1] - 1 - begin)
    return begin + 1 + later


OBJECTIVES = {"final": final, "midstream": midstream, "anytime": anytime}


def meta_loss(
    learner: Learner,
    episodes: Episodes,
    stop: Int[Tensor, "B Q"] | None = None,
    guided: bool = False,
) -> MetaLoss:
    """Mean loss of the queries, each put after its own stop, or all after the whole stream."""
    encoded = encode_episodes(learner, episodes)
    own = episodes.test.task[:, :, None] == episodes.train.task[:, None] if guided else None
    prediction, guidance = learner.episode(encoded, stop, own)
    loss = learner.target.loss(prediction, episodes.test.y).mean()
    with torch.no_grad():
        error = learner.target.error(prediction, episodes.test.y).mean()
    return MetaLoss(loss, guidance, error)
