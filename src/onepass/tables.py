"""Scores and speeds as a person reads them, always with their standard error or spread."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onepass.bench import Row
    from onepass.cost import Cost
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
    # offline has no episodes to count
    speed = f"{result['episodes_per_s']:,.0f} episodes/s, " if result["steps"] else ""
    print(f"{speed}{result['seconds']:,.0f} s")


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


def print_bench(rows: "list[Row]") -> None:
    """A table that can be pasted into a page, what its columns are, and what went wrong."""
    header = [
        "learner",
        "tasks",
        "batch",
        "episodes/s",
        "ms/step (min to max)",
        "peak GB (reserved)",
        "published",
        "ratio",
        "FLOP/s",
        "bytes/s",
        "warm-up s",
    ]
    print_table(header, [_bench_cells(row) for row in rows])
    for line in bench_notes(rows):
        print(f"\n{line}")
    for row in rows:
        if row.profile:
            print(f"\nwhere a step of {row.learner}, {row.tasks} tasks, spends its time:")
        for kernel in row.profile:
            figures = f"{kernel['ms_per_step']:>9.3f} ms{100 * kernel['share']:>6.1f} %"
            print(f"{figures}{kernel['calls_per_step']:>8.1f} x  {kernel['name'][:90]}")


def digits(value: float | None) -> str:
    """One after the point, and of small numbers the first three."""
    assert value is not None
    return f"{value:,.1f}" if value >= 10 else f"{value:.3g}"


def _bench_cells(row: "Row") -> list[str]:
    if row.failed:
        return [row.learner, str(row.tasks), str(row.batch), "failed", *["-"] * 7]
    spread = f"({row.ms_per_step_least:,.2f} to {row.ms_per_step_most:,.2f})"
    return [
        row.learner,
        str(row.tasks),
        str(row.batch),
        digits(row.episodes_per_s),
        f"{row.ms_per_step:,.2f} {spread}",
        f"{row.peak_gb:.2f} ({row.reserved_gb:.2f})",
        f"{row.published_episodes_per_s:,g}" if row.published_episodes_per_s else "-",
        f"{row.ratio:.1f}" if row.ratio else "-",
        share(row.flops_per_s, row.flops_ceiling),
        share(row.least_bytes_per_s, row.bytes_ceiling),
        f"{row.warm_up_s:.0f}",
    ]


def bench_notes(rows: "list[Row]") -> list[str]:
    """What was measured where, and what to know before comparing."""
    row = rows[0]
    images = "omniglot" if row.data == "omniglot" else "noise in the shape of omniglot"
    on_card = row.device == "cuda"
    memory = "in use on the card" if on_card else "held by the process"
    commit = f"{row.commit[:12]}{row.commit[40:]}" if row.commit else "unknown"
    notes = [
        f"{row.card}, torch {row.torch}, {row.date[:10]}, commit {commit}, {row.precision}, "
        f"{images}, {row.shots} shots and {row.queries} queries. Medians of {row.repeats} repeats, "
        "warm-up not in them; steps of the last phase.",
        f"Shares are of what this machine reached in this run: {prefixed(row.flops_ceiling)}FLOP/s "
        f"in a {'bf16' if on_card else 'float32'} product, {prefixed(row.bytes_ceiling)}B/s in a "
        "copy. FLOP are those of the products, convolutions and attention of a plain step, without "
        "other kernels of our own. Bytes are a lower bound of a plain step's: weights, slopes, "
        "moments and what is kept for the way back, each written and read once; a compiled step "
        f"may keep less. Peak GB (10^9 bytes) is the most {memory}, warm-up included; reserved "
        "has gaps.",
    ]
    if any(row.published_episodes_per_s for row in rows):
        notes.append(
            "Published is the published code on one H200 with its batch already on the card; "
            "drawing its episodes, as ours does, its transformer comes to 335 at 20 tasks and 101 "
            "at 100."
        )
    if not on_card:
        notes.append(
            "Sizes for a CPU: the published code was measured on a card, with a batch of 16."
        )
    for row in rows:
        where = f"{row.learner}, {row.tasks} tasks"
        notes += [f"{where}: {note}" for note in row.notes]
        notes += [f"{where}: failed: {row.failed}"] if row.failed else []
    return notes


def print_cost(rows: "list[Cost]") -> None:
    """A line per learner and length, and what encoding costs beside it."""
    header = ["learner", "examples seen", "observe ms", "predict ms", "state bytes"]
    cells = [
        [
            row.learner,
            f"{row.examples:,}",
            _milliseconds(row.observe_ms, row.observe_ms_low, row.observe_ms_high),
            _milliseconds(row.predict_ms, row.predict_ms_low, row.predict_ms_high),
            f"{row.state_bytes:,}",
        ]
        for row in rows
    ]
    print_table(header, cells)
    for row in {row.learner: row for row in rows}.values():
        print(
            f"\n{row.learner}: encoding comes on top, {row.encode_ms:.3f} ms for an x and "
            f"{row.encode_y_ms:.3f} ms for a y, whatever came before."
        )
    print(
        f"\n{rows[0].card}, torch {rows[0].torch}; one example or query at a time, medians and "
        "quartiles."
    )


def _milliseconds(middle: float, low: float, high: float) -> str:
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def print_table(header: list[str], rows: list[list[str]]) -> None:
    """Columns in line, as Markdown has them; the first to the left, the others to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(header, *rows, strict=True)]

    def line(cells: list[str]) -> str:
        first, *others = zip(cells, widths, strict=True)
        padded = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
        return f"| {' | '.join(padded)} |"

    print(line(header))
    rules = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    print(f"| {' | '.join(rules)} |")
    for row in rows:
        print(line(row))


def share(reached: float | None, ceiling: float | None) -> str:
    if not reached or not ceiling:
        return "-"
    return f"{prefixed(reached).strip()} ({100 * reached / ceiling:.0f} %)"


def prefixed(number: int | float | None) -> str:
    """Three digits and a letter: 123456 is `123 k`."""
    value = number or 0.0
    for letter in ("", "k", "M", "G"):
        if value < 999.5:
            return f"{value:.3g} {letter}"
        value /= 1_000
    return f"{value:,.3g} T"


def amount(mean: float | None, spread: float | None, digits: int) -> str:
    """`12.88 +- 0.14`, or a dash."""
    if mean is None:
        return "-"
    return tidy(mean, digits) + ("" if spread is None else f" +- {spread:.{digits}f}")


def tidy(value: float, digits: int, sign: str = "") -> str:
    # what rounds to nothing is not below 0
    return f"{round(value, digits) + 0.0:{sign}.{digits}f}"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
