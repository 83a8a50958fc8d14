"""Methods held against each other on the very same episodes."""

import math
from collections.abc import Sequence
from typing import Any

from onepass.reproduce.comparison import Line, signed
from onepass.reproduce.rows import essence
from onepass.statistics import paired
from onepass.tables import markdown_table

REFERENCE = "transformer"  # what the other learners are held against, episode by episode
PAIRED = """
The same episodes were asked of both, so that what makes an episode easy or hard drops out; below 0
the learner is better than the one it is held against. The standard error is over episodes, or over
seeds where there are several.
"""


def pairs(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Every learner against the transformer, on the same episodes, if that ran in its column.

    One that shares no episodes with it is held against the first before it with which it does.
    """
    groups: dict[tuple[str, int], list[Line]] = {}
    for line in lines:
        if line.results:
            groups.setdefault((line.row.benchmark, line.row.config.tasks), []).append(line)
    found = []
    for group in groups.values():
        named = [line for line in group if line.row.config.learner.name == REFERENCE]
        reference = (named or group)[0]
        for n, line in enumerate(group):
            others = [reference, *group[:n]] if line is not reference else []
            gaps = ((other, paired(line.results, other.results)) for other in others)
            against, gap = next(((other, gap) for other, gap in gaps if gap), (line, None))
            if gap is None:
                continue
            names = {"benchmark": line.row.benchmark, "learner": line.row.name}
            names |= {"tasks": line.row.config.tasks, "against": against.row.name}
            values = {"difference": line.scale * gap.mean, "stderr": line.scale * gap.stderr}
            counts = {"seeds": gap.seeds, "episodes": gap.episodes, "steps": line.steps}
            found.append(names | values | counts | {"apart": ", ".join(line.apart())})
    return found


def pairs_table(found: Sequence[dict[str, Any]]) -> str:
    header = ["benchmark", "tasks", "learner", "against", "difference", "seeds", "episodes"]
    rows = []
    for pair in found:
        # two digits of the spread say how many of the difference mean anything
        digits = max(0, 1 - math.floor(math.log10(pair["stderr"]))) if pair["stderr"] else 2
        gap = f"{signed(pair['difference'], digits)} +- {pair['stderr']:.{digits}f}"
        counts = [str(pair["seeds"]), f"{pair['episodes']:,}"]
        names = [pair["benchmark"], str(pair["tasks"]), pair["learner"], pair["against"]]
        rows.append([*names, gap, *counts])
    return markdown_table(header, rows)


def same_episodes(lines: Sequence[Line]) -> str:
    """A section with each pair once, whatever tables it is in, and who shares no episodes."""
    once: dict[str, Line] = {}
    for line in lines:
        once.setdefault(essence(line.row.config), line)
    if not (compared := pairs(list(once.values()))):
        return ""
    told = {(pair["benchmark"], pair[name]) for pair in compared for name in ("learner", "against")}
    # in order, and once each however many numbers of tasks it was asked
    alone: dict[str, dict[str, None]] = {}
    for row in (line.row for line in once.values()):
        if (row.benchmark, row.name) not in told:
            alone.setdefault(row.benchmark, {})[row.name] = None
    said = "; ".join(f"{benchmark}: {', '.join(names)}" for benchmark, names in alone.items())
    end = f"\nNo episodes in common with another: {said}.\n" if said else ""
    return f"\n## On the same episodes\n{PAIRED}\n{pairs_table(compared)}{end}"
