"""A table from its finished runs: Markdown, CSV, JSON, and a figure where the paper has one."""

from pathlib import Path
from typing import Any

from onepass.config import Config
from onepass.devices import pick_device
from onepass.files import write_bytes, write_json
from onepass.forgetting import forgetting_of_run
from onepass.plots import save_figure
from onepass.reproduce.comparison import (
    RULE,
    Line,
    comparison_table,
    csv_table,
    facts,
)
from onepass.reproduce.figures import forgetting_figure, scaling_figure
from onepass.reproduce.losses import (
    Forgotten,
    Losses,
    losses,
    losses_columns,
    losses_facts,
    losses_table,
)
from onepass.reproduce.pairs import pairs, pairs_table
from onepass.reproduce.plan import Plan
from onepass.reproduce.rows import TITLES
from onepass.run import Run
from onepass.sweep import Job

SPREADS = """Spreads are standard deviations over seeds; where there is one seed, the standard error
over its episodes. The paper's are standard deviations over 5 runs (Offline: standard errors of
10)."""
PAIRED = """On the same episodes, the error of a learner minus that of the one it is held against
(below 0 is better), with its standard error over episodes, or over seeds where there are
several:"""
LOST = """What later tasks cost earlier ones: the error of a task after all others minus its error
right after it was learned."""
FORGETTING_EPISODES = 256


def write_table(plan: Plan, out: Path, device: str) -> str:
    """The Markdown is handed back."""
    lines, title = plan.lines(out), title_of(plan)
    compared = pairs(lines)
    page = [f"# {title}\n"]
    content: dict[str, Any] = {"table": plan.table, "title": title, "settings": plan.settings}
    content |= {"rows": [facts(line) for line in lines], "paired": compared}
    if lines:
        page.append(f"{comparison_table(lines)}\n{SPREADS}\n{RULE}\n")
    if compared:
        page.append(f"{PAIRED}\n\n{pairs_table(compared)}")
    if plan.table == "forgetting" and (found := forgetting_of(plan, lines, out, device)):
        content["forgetting"] = [losses_facts(each) for each in found]
        for each in found:
            content["rows"][lines.index(each.line)] |= losses_columns(each)
        page.append(f"{LOST}\n\n{losses_table(found)}")
        save_figure(forgetting_figure(found, _label(plan)), out / f"{plan.name}.png")
    if plan.table == "scaling":
        save_figure(scaling_figure(lines, _label(plan)), out / f"{plan.name}.png")
    page += [f"Left out: {reason}\n" for reason in plan.absent.values()]
    text = "\n".join(page)
    write_bytes(out / f"{plan.name}.md", text.encode())
    write_bytes(out / f"{plan.name}.csv", csv_table(content["rows"]).encode())
    write_bytes(out / f"{plan.name}-paired.csv", csv_table(compared).encode())
    write_json(out / f"{plan.name}.json", content | {"left_out": plan.absent})
    return text


def title_of(plan: Plan) -> str:
    """The paper's, and in what these runs are not as published."""
    return f"{TITLES[plan.table]} {_label(plan)}".strip()


def _label(plan: Plan) -> str:
    config: Config = plan.configs_of(plan.rows[0])[0]
    tiny = [f"tiny sizes, {config.tasks} tasks"] if config.recipe == "tiny" else []
    other = [*tiny, *plan.settings]
    return f"({', '.join(other)})" if other else ""


def forgetting_of(plan: Plan, lines: list[Line], out: Path, device: str) -> list[Losses]:
    """What the runs of each row lose of a task by later ones, all seeds together."""
    found = []
    for line in lines:
        jobs = plan.finished(line.row, out)
        if jobs:
            found.append(losses(line, [_forgotten(job, device) for job in jobs]))
    return found


def _forgotten(job: Job, device: str) -> Forgotten:
    """Measured once, kept in the run's folder; one of another shape is measured anew."""
    run, config = Run(job.path), job.config
    wanted = {"tasks": config.tasks, "shots": config.shots}
    wanted["episodes"] = min(FORGETTING_EPISODES, config.evaluation_episodes)
    if run.has("forgetting.json"):
        kept = run.read("forgetting.json")
        if all(kept.get(key) == value for key, value in wanted.items()):
            return kept
    forgetting_of_run(job.path, {}, wanted["episodes"], config.seed, pick_device(device))
    return run.read("forgetting.json")
