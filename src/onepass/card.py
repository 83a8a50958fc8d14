"""The card of a model: what it is, how it was made, what it scored, and where it ends."""

from collections.abc import Sequence
from typing import Any

from onepass.benchmarks.base import Benchmark
from onepass.data import READERS
from onepass.learner import Learner, count_parameters
from onepass.tables import amount, markdown_table
from onepass.targets import Classes

FRONT = """---
library_name: onepass
tags:
- continual-learning
- meta-learning
- in-context-learning
---
"""


def card(
    result: dict[str, Any],
    benchmark: Benchmark,
    learner: Learner,
    evaluations: Sequence[dict[str, Any]] = (),
) -> str:
    """Markdown, with the header that model hubs read."""
    is_class = isinstance(learner.target, Classes)
    title = f"# {result['learner']}, meta-trained on {result['benchmark']}"
    sections = [
        title,
        "Learns from a stream of examples in forward passes: no gradient step at use.",
        _usage(is_class),
        "## What it is\n\n" + _table(_facts(benchmark, learner)),
        "## How it was meta-trained\n\n" + _table(_making(result)),
        "## Data\n\n" + _table(sources(result["config"]["benchmark"])),
        "## Measured\n\n" + _scores(result, evaluations, is_class),
        "## Limits\n\n" + _limits(learner),
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


def _usage(is_class: bool) -> str:
    what = '"rose"' if is_class else "[0.3, 0.7]"
    return (
        "```python\nimport onepass\n\n"
        'learner = onepass.load("this/folder")\n'
        f"learner.learn_one(x, {what})\n"
        "learner.predict_one(another_x)\n```"
    )


def _facts(benchmark: Benchmark, learner: Learner) -> list[tuple[str, str]]:
    shape = " x ".join(str(edge) for edge in benchmark.x_shape)
    return [
        ("", ""),
        ("reads", shape),
        ("answers", str(learner.target)),
        ("parameters", f"{count_parameters(learner):,}"),
    ]


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
    return _table(rows)


def _score(score: dict[str, Any], is_class: bool) -> str:
    if score["error"] is None:
        return "-"
    scale, digits = (100, 2) if is_class else (1, 4)
    return amount(scale * score["error"], scale * score["stderr"], digits)


def _limits(learner: Learner) -> str:
    lines = ["- It learns what is like its meta-training data. Of anything else, expect less."]
    if isinstance(learner.target, Classes):
        lines.append(f"- Its codes hold {learner.target.codes:,} classes.")
    lines.append("- Errors are over classes it was not meta-trained on, yet drawn like those.")
    return "\n".join(lines)


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    head, *body = rows
    return markdown_table(head, body).rstrip()
