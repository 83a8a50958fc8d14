"""What a config amounts to, measured on the learner itself."""

from typing import Any

import torch

from onepass.config import Config, build, resolved, to_json
from onepass.data import where_from
from onepass.learner import count_parameters
from onepass.registry import BENCHMARKS
from onepass.targets import Classes
from onepass.tree import state_bytes


@torch.no_grad()
def describe(config: Config) -> dict[str, Any]:
    """Parameters, tokens and state after the whole stream; blank inputs, so it needs no data."""
    benchmark, learner = build(config)
    learner.eval()
    length = config.spec.length
    state = learner.init_state(1)
    blank_y = learner.target.blank(length)
    for start in range(0, length, 100):
        count = min(100, length - start)
        z = learner.encode(torch.zeros(1, count, *benchmark.x_shape))
        state = learner.observe(state, z, learner.encode_y(blank_y[:, start : start + count]))
    credit = {"credit": benchmark.credit} if benchmark.credit else {}
    return {
        "benchmark": config.benchmark.name,
        "learner": config.learner.name,
        "tasks": config.tasks,
        "shots": config.shots,
        "queries": config.queries,
        "input": "x".join(str(edge) for edge in benchmark.x_shape),
        "target": str(learner.target),
        "parameters": count_parameters(learner),
        "tokens": length * learner.tokens_per_example,
        "state_bytes": state_bytes(state),
        "steps": config.steps,
        "data": where_from(config.benchmark.name),
        **credit,
        "settings": to_json(resolved(config)),
    }


def asks_for_classes(config: Config) -> bool:
    benchmark = BENCHMARKS.build(config.benchmark.name, **config.benchmark.options)
    return isinstance(benchmark.target(config.spec), Classes)
