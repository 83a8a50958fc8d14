"""Scores as a person reads them: errors of classes in percent, always with a standard error."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onepass.forgetting import Forgetting


def print_facts(facts: dict[str, Any]) -> None:
    """What `describe` found, then every other setting as it can be typed."""
    for key, value in facts.items():
        if key != "settings":
            shown = f"{value:,}" if isinstance(value, int) else value
            print(f"{key.replace('_', ' '):<26}{shown}")
    print("\nother settings, changed with key=value:")
    for key, value in facts["settings"].items():
        if isinstance(value, dict):
            for option, chosen in value["options"].items():
                print(f"{key + '.' + option:<26}{chosen}")
        elif key not in facts and key != "recipe":
            print(f"{key:<26}{value}")


def print_result(result: dict[str, Any], is_class: bool) -> None:
    for split in ("meta_test", "meta_train"):
        if result[split]["error"] is not None:
            print(f"{split.replace('_', '-'):<12}{_score(result[split], is_class)}")
    print(f"{result['episodes_per_s']:,.0f} episodes/s, {result['seconds']:,.0f} s")


def print_evaluation(found: dict[str, Any], is_class: bool) -> None:
    """The score, and one line per stop where there are several."""
    shape = f"{found['tasks']} tasks x {found['shots']} shots, {found['episodes']:,} episodes"
    print(f"{found['benchmark']}, {shape}:")
    print(f"meta-{found['split']:<7}{_score(found, is_class)}")
    if found["split"] != "train":
        print(f"meta-train  {_score(found['meta_train'], is_class)}")
    if len(found["stops"]) == 1:
        return
    unit, scale = (" in %", 100) if is_class else ("", 1)
    print(f"error{unit} of all tasks seen so far, and of the first task, after n examples:")
    for seen, (stop, row) in enumerate(zip(found["stops"], found["task_error"], strict=True), 1):
        print(f"{stop:>8}{scale * sum(row[:seen]) / seen:>10.3f}{scale * row[0]:>10.3f}")


def print_forgetting(found: "Forgetting", is_class: bool) -> None:
    """The error of a task against how many tasks came after it."""
    unit, scale = (" in %", 100) if is_class else ("", 1)
    print(f"error{unit} of a task gained by learning n more, over {found.episodes:,} episodes:")
    lags = sorted({*range(min(5, found.tasks)), *range(0, found.tasks, 5), found.tasks - 1})
    for lag in lags:
        gained, spread = scale * found.curve[lag], scale * found.curve_stderr[lag]
        print(f"{lag:>8}{gained:>10.3f} +- {spread:.3f}")
    transfer, spread = scale * found.backward_transfer, scale * found.backward_transfer_stderr
    print(f"backward transfer{unit}: {transfer:.3f} +- {spread:.3f} (below 0 is forgetting)")


def _score(score: dict[str, Any], is_class: bool) -> str:
    if is_class:
        error = f"error {100 * score['error']:.2f} +- {100 * score['stderr']:.2f} %"
        return f"{error}, loss {score['loss']:.4f}"
    return f"error {score['error']:.4f} +- {score['stderr']:.4f}"
