"""The card of a model: what it is, how it was made, what it scored, and where it ends."""

from collections.abc import Sequence
from typing import Any

import torch

from onepass.benchmarks.base import Benchmark
from onepass.data import READERS
from onepass.learner import Encoded, Learner, count_parameters, most_classes, states
from onepass.tables import amount, markdown_table, prefixed
from onepass.targets import Classes
from onepass.tree import state_bytes

FRONT = """---
library_name: onepass
tags:
- continual-learning
- meta-learning
- in-context-learning
---
"""


def card(
    name: str,
    result: dict[str, Any],
    benchmark: Benchmark,
    learner: Learner,
    evaluations: Sequence[dict[str, Any]] = (),
) -> str:
    """Markdown, with the header that model hubs read."""
    is_class = isinstance(learner.target, Classes)
    sections = [
        f"# {name}",
        f"{_kind(result)}, meta-trained on {result['benchmark']}. Learns from a stream of examples "
        "in forward passes: no gradient step at use.",
        _usage(name, is_class),
        "## What it is\n\n" + _table(_facts(benchmark, learner)),
        "## How it was meta-trained\n\n" + _table(_making(result)),
        "## Data\n\n" + _table(sources(result["config"]["benchmark"])),
        "## Measured\n\n" + _scores(result, evaluations, is_class),
        "## Limits\n\n" + _limits(result, learner),
    ]
    if benchmark.credit:
        sections.append(f"Strokes: {benchmark.credit}.")
    return FRONT + "\n" + "\n\n".join(sections) + "\n"


def sources(benchmark: dict[str, Any]) -> list[tuple[str, str]]:
    """Whose examples they were, and on what terms."""
    names = benchmark["options"].get("of") or [benchmark["name"]]
    terms = {name: reader.licence for name, reader in READERS.items()}
    terms["kanji"] = "drawn from the strokes of KanjiVG: Ulrich Apel, CC BY-SA 3.0"
    own = "the owner's" if benchmark["name"].startswith(("folder", "npz")) else "made by onepass"
    return [("source", "licence"), *((name, terms.get(name, own)) for name in names)]


def _kind(result: dict[str, Any]) -> str:
    mixer = result["config"]["learner"]["options"].get("mixer")
    return f"`{result['learner']}`" + (f" with `mixer={mixer}`" if mixer else "")


def _usage(name: str, is_class: bool) -> str:
    what = '"rose"' if is_class else "[0.3, 0.7]"
    return (
        "```python\nimport onepass\n\n"
        f'learner = onepass.load("{name}")\n'
        f"learner.learn_one(x, {what})\n"
        "learner.predict_one(another_x)\n```"
    )


def _facts(benchmark: Benchmark, learner: Learner) -> list[tuple[str, str]]:
    shape = " x ".join(str(edge) for edge in benchmark.x_shape)
    return [
        ("", ""),
        ("reads", shape),
        ("answers", _answers(learner)),
        ("parameters", f"{count_parameters(learner):,}"),
        ("state", _memory(learner, benchmark.x_shape)),
    ]


def _answers(learner: Learner) -> str:
    if not isinstance(learner.target, Classes):
        return str(learner.target)
    most = most_classes(learner)
    return f"up to {most:,} classes" if most else "any number of classes"


@torch.no_grad()
def _memory(learner: Learner, x_shape: tuple[int, ...]) -> str:
    """What is kept of a stream, and whether it grows: measured, two examples are enough."""
    x, y = torch.zeros(1, 2, *x_shape), learner.target.blank(2)
    encoded = Encoded(learner.encode(x), learner.encode_y(y), None, None)
    first, second = (state_bytes(state) for state in states(learner, encoded, 1, [1, 2]))
    if first == second:
        return f"{prefixed(first)}B, however long the stream"
    return f"{prefixed(second - first)}B an example"


def _making(result: dict[str, Any]) -> list[tuple[str, str]]:
    facts = [("command", f"`{result['command']}`"), ("commit", result["commit"] or "not known")]
    facts += [(key, str(result[key])) for key in ("date", "device", "torch")]
    return [("", ""), *facts, ("meta-training", f"{result['seconds']:,.0f} s")]


def _scores(result: dict[str, Any], evaluations: Sequence[dict[str, Any]], is_class: bool) -> str:
    """Of the run itself, then of every evaluation asked for since."""
    rows = [("examples of", "tasks x shots", "error" + (", %" if is_class else ""), "episodes")]
    shape, own = f"{result['tasks']} x {result['shots']}", result["benchmark"]
    for split in ("meta_test", "meta_train"):
        name = f"{own}, {split.replace('_', '-')}"
        rows.append(
            (name, shape, _score(result[split], is_class), f"{result[split]['episodes']:,}")
        )
    for found in sorted(
        evaluations, key=lambda one: (one["benchmark"], one["tasks"], one["shots"])
    ):
        name = f"{found['benchmark']}, meta-{found['split']}"
        shape = f"{found['tasks']} x {found['shots']}"
        rows.append((name, shape, _score(found, is_class), f"{found['episodes']:,}"))
    shuffled = result["config"]["order"] == "shuffled"
    order = "Streams are shuffled." if shuffled else "Tasks come one after the other."
    return f"{order}\n\n{_table(rows)}"


def _score(score: dict[str, Any], is_class: bool) -> str:
    if score["error"] is None:
        return "-"
    scale, digits = (100, 2) if is_class else (1, 4)
    return amount(scale * score["error"], scale * score["stderr"], digits)


def _limits(result: dict[str, Any], learner: Learner) -> str:
    lines = ["- It learns what is like its meta-training data. Of anything else, expect less."]
    if isinstance(learner.target, Classes) and (most := most_classes(learner)):
        length = result["tasks"] * result["shots"]
        lines.append(f"- Its codes hold {most:,} classes.")
        lines.append(
            f"- It was meta-trained on streams of {length:,} examples of up to {result['tasks']} "
            "classes; more of either is beyond what it practised. Where examples repeat, "
            "`onepass.load(..., skip_above=0.5)` learns only what is new to it, and where labels "
            'are wrong at times, `max_examples=200, which="balanced"` keeps that from adding up.'
        )
        if learner.forget(learner.init_state(1), 0) is None:
            lines.append(
                "- It can forget a class only if told `keep_examples=True` from the start."
            )
    lines.append("- Errors are over classes it was not meta-trained on, yet drawn like those.")
    return "\n".join(lines)


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    head, *body = rows
    return markdown_table(head, body).rstrip()
