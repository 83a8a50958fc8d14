"""Runs that differ in their seed alone are one method: drawn alike, and summed up together."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from onepass.config import to_json
from onepass.forgetting import Forgetting, together
from onepass.report.entries import Entry, deciding, labels
from onepass.statistics import Difference, Result, Spread, over_seeds, paired

REFERENCE = "transformer"  # what others are held against, where it is there


@dataclass(frozen=True)
class Method:
    """Its seeds in order; the label is for its own question, the number decides how it is drawn."""

    number: int
    label: str
    entries: list[Entry]

    @property
    def first(self) -> Entry:
        return self.entries[0]

    @property
    def score(self) -> Spread | None:
        """The error on meta-test, in the units that are shown."""
        scored = [entry for entry in self.entries if entry.result.meta_test.error is not None]
        if not scored:
            return None
        return over_seeds([_result(entry) for entry in scored]).scaled(self.first.scale)

    @property
    def forgetting(self) -> Forgetting | None:
        """All seeds together; those that were asked another number of tasks are left out."""
        found = [entry.forgetting for entry in self.entries if entry.forgetting]
        shape = [(each.tasks, each.shots) for each in found]
        same = [each for each, own in zip(found, shape, strict=True) if own == shape[0]]
        return together(same) if same else None


class Compared(NamedTuple):
    """The methods that answered one question, and how far each is from one of them."""

    reference: Method
    lines: list[tuple[Method, Difference | None]]


def methods(entries: Sequence[Entry]) -> list[Method]:
    groups: dict[tuple[str, int], list[Entry]] = {}
    seen: Counter[tuple[str, int]] = Counter()
    for entry in entries:
        key = json.dumps(deciding(entry) | {"seed": None}, sort_keys=True)
        # a run that was given twice is not two seeds
        copy = seen[key, entry.config.seed]
        seen[key, entry.config.seed] += 1
        groups.setdefault((key, copy), []).append(entry)
    ordered = [sorted(group, key=lambda entry: entry.config.seed) for group in groups.values()]
    names = _names([group[0] for group in ordered])
    # the same name is drawn alike whatever it is asked
    numbers = {name: n for n, name in enumerate(dict.fromkeys(names))}
    return [Method(numbers[name], name, group) for name, group in zip(names, ordered, strict=True)]


def _names(entries: Sequence[Entry]) -> list[str]:
    """What sets each apart from the others of its question, but for the seed."""
    plain = [replace(entry, config=replace(entry.config, seed=0)) for entry in entries]
    names = {}
    for question in dict.fromkeys(entry.question for entry in plain):
        places = [n for n, entry in enumerate(plain) if entry.question == question]
        names |= dict(zip(places, labels([plain[n] for n in places]), strict=True))
    return [names[n] for n in range(len(plain))]


def compared(questions: dict[str, list[Method]]) -> dict[str, Compared]:
    """Where several runs answered a question; on the same episodes where they share some."""
    tables = {}
    for question, found in questions.items():
        scored = [method for method in found if method.score]
        if sum(len(method.entries) for method in scored) < 2:
            continue
        named = [method for method in scored if method.first.config.learner.name == REFERENCE]
        reference = max(named or scored, key=lambda method: _as_reference(method, scored))
        lines = [(method, paired(_whole(method), _whole(reference))) for method in scored]
        tables[question] = Compared(reference, lines)
    return tables


def _as_reference(method: Method, others: Sequence[Method]) -> tuple[int, float]:
    """How many it can be held against; among equals, the best."""
    shared = [other for other in others if paired(_whole(other), _whole(method))]
    return len(shared), -method.score.mean if method.score else 0.0


def _whole(method: Method) -> list[Result]:
    """The results that have the errors of all their episodes."""
    return [_result(entry) for entry in method.entries if _is_whole(entry)]


def _is_whole(entry: Entry) -> bool:
    errors = entry.result.meta_test.episode_error
    return len(errors) == entry.config.evaluation_episodes and bool(entry.result.device)


def _result(entry: Entry) -> Result:
    """As statistics read it."""
    score = entry.result.meta_test
    errors = {"error": score.error, "stderr": score.stderr or 0.0}
    meta_test = errors | {"episode_error": score.episode_error}
    return {"meta_test": meta_test, "device": entry.result.device, "config": to_json(entry.config)}
