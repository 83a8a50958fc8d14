"""Runs made by hand, for tables whose every number can be worked out."""

from dataclasses import replace

from onepass.config import resolved, to_json
from onepass.reproduce.rows import Row, Scale, rows_of


def made(row: Row, seed: int, errors: list[float], **changes) -> dict:
    """A result file of this row, with these errors of its episodes."""
    config = replace(row.config, seed=seed)
    score = {"error": sum(errors) / len(errors), "stderr": 0.01, "episode_error": errors}
    facts = {
        "benchmark": config.benchmark.name,
        "learner": config.learner.name,
        "seed": seed,
        "steps": config.steps,
        "meta_test": score,
        "meta_train": {"error": 0.0, "stderr": 0.0},
        "parameters": 1_500_000,
        "device": "NVIDIA H200",
        "seconds": 100.0,
        "episodes_per_s": 80.0,
        "memory_gb": 2.5,
        "command": "onepass train ...",
        "commit": "a" * 40,
        "date": "2026-01-02T03:04:05+00:00",
        "config": to_json(resolved(config)),
    }
    shape = {name: getattr(config, name) for name in ("tasks", "shots", "queries", "recipe")}
    return facts | shape | changes


def row_of(table: str, column: str, name: str) -> Row:
    (row,) = [row for row in rows_of(table, Scale()) if (row.column, row.name) == (column, name)]
    return row


def forgotten(curve: list[float], transfer: float, **changes) -> dict:
    """A forgetting file of three tasks; the standard errors over its episodes are 0.01."""
    groups = [
        {"first": k, "last": k, "seen": list(range(k, 4)), "lost": curve[: 4 - k]}
        for k in (1, 2, 3)
    ]
    return {
        "tasks": 3,
        "shots": 5,
        "episodes": 32,
        "error": [[0.1] * 3] * 3,
        "stderr": [[0.01] * 3] * 3,
        "curve": curve,
        "curve_stderr": [0.01] * 3,
        "groups": [group | {"stderr": [0.01] * len(group["seen"])} for group in groups],
        "backward_transfer": transfer,
        "backward_transfer_stderr": 0.01,
    } | changes
