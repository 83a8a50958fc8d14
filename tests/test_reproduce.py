"""Tables of the paper from hand-made runs, with every number worked out by hand."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from onepass.config import resolved, to_json
from onepass.files import write_json
from onepass.reproduce.comparison import Line, facts, judge, our_cell, pairs
from onepass.reproduce.ledger import ledger, read_results, write_ledger
from onepass.reproduce.paper import COST, Published
from onepass.reproduce.plan import dry_run, make_plan, write_table
from onepass.reproduce.rows import TABLES, Row, Scale, essence, recorded, rows_of
from onepass.sweep import jobs_of


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


def test_a_line_has_the_mean_and_std_over_seeds_and_the_distance_in_their_std():
    row = row_of("table1", "omniglot", "transformer")
    results = tuple(made(row, seed, [error]) for seed, error in enumerate((0.120, 0.140, 0.160)))
    found = facts(Line(row, results))
    assert (found["seeds"], found["steps"], found["verdict"]) == (3, 50_000, "reproduced")
    # in %: 12, 14, 16 against 13.7 +- 0.6
    assert found["test_mean"] == pytest.approx(14.0)
    assert found["test_std"] == pytest.approx(2.0)
    assert found["test_stderr"] == pytest.approx(2.0 / 3**0.5)
    assert found["difference"] == pytest.approx(0.3)
    assert found["in_their_std"] == pytest.approx(0.5)
    assert our_cell(Line(row, results), "meta_test") == "14.00 +- 2.00"
    assert our_cell(Line(row, results[:1]), "meta_test") == "12.00 +- 1.00"


def test_errors_that_are_no_classes_are_not_percent():
    row = row_of("table2", "sine", "transformer")
    assert facts(Line(row, (made(row, 0, [0.0035]),)))["test_mean"] == 0.0035


def test_pairs_are_of_the_same_episodes():
    rows = [row_of("table1", "omniglot", name) for name in ("pn", "transformer", "oml")]
    errors = ([0.0, 0.02], [0.1, 0.16], [0.3, 0.3])
    lines = [Line(row, (made(row, 0, found),)) for row, found in zip(rows, errors, strict=True)]
    # in points: pn is 10 and 14 below, oml 20 and 14 above
    first, second = pairs(lines)
    assert (first["learner"], first["against"], first["episodes"]) == ("pn", "transformer", 2)
    assert first["difference"] == pytest.approx(-12.0)
    assert first["stderr"] == pytest.approx(2.0)
    assert second["difference"] == pytest.approx(17.0)
    old = {"error": 0.1, "stderr": 0.01}
    assert pairs([Line(rows[0], (made(rows[0], 0, [0.1], meta_test=old),)), lines[1]]) == []


@pytest.mark.parametrize(
    ("ours", "published", "is_class", "verdict"),
    [
        (14.9, (13.7, 0.6), True, "reproduced"),  # within 2 std
        (38.8, (36.0, 1.4), True, "reproduced"),
        (38.9, (36.0, 1.4), True, "worse"),
        (78.1, (76.6, 0.3), True, "reproduced"),  # within 1.5 points
        (78.2, (76.6, 0.3), True, "worse"),
        (4.3, (3.8, 0.1), True, "reproduced"),  # within 15 %
        (4.5, (3.8, 0.1), True, "worse"),
        (0.7, (0.4, 0.0), True, "worse"),
        (10.0, (13.7, 0.6), True, "better"),
        (0.0035, (0.0031, 0.0002), False, "reproduced"),
        (0.0038, (0.0031, 0.0002), False, "worse"),
    ],
)
def test_the_verdict_follows_the_rule(ours, published, is_class, verdict):
    assert judge(ours, Published(*published), is_class) == verdict


def test_runs_that_cannot_be_compared_are_never_called_reproduced():
    row = row_of("table1", "casia", "transformer")
    assert Line(row, ()).verdict == "not run"
    assert Line(row, (made(row, 0, [0.004]),)).verdict == "reproduced"
    short = made(row, 0, [0.004], steps=10_000)
    assert Line(row, (short,)).verdict == "cut short at 10,000 steps"
    stand_in = rows_of("table1", Scale(instead=(("casia", "kanji"),)))
    (row,) = [r for r in stand_in if (r.column, r.name) == ("casia", "transformer")]
    assert row.benchmark == "casia (kanji in its place)"
    assert Line(row, (made(row, 0, [0.004]),)).verdict == "other data, not comparable"
    tiny = replace(row, config=replace(row.config, recipe="tiny"))
    assert Line(tiny, (made(row, 0, [0.004]),)).verdict == "tiny, not comparable"


@pytest.mark.parametrize("table", TABLES)
def test_every_row_of_every_table_can_be_named_and_run(table):
    for recipe in ("paper", "tiny"):
        rows = rows_of(table, Scale(recipe))
        assert len({(row.column, row.name) for row in rows}) == len(rows)
        assert len(jobs_of([row.config for row in rows], Path("x"))) > 1


def test_the_rows_have_the_published_settings():
    assert len(rows_of("table1", Scale())) == 32
    assert len(rows_of("table2", Scale())) == 24
    assert len(rows_of("resnet", Scale())) == 24
    rotation = row_of("table2", "rotation", "oml").config
    assert rotation.benchmark.name == "casia"
    assert rotation.benchmark.options == {
        "validation": False,
        "label_shift": False,
        "view": "rotation",
    }
    assert rotation.learner.options["inner_rate"] == 0.0001
    assert (rotation.tasks, rotation.steps, rotation.batch) == (100, 50_000, 16)
    assert row_of("forgetting", "sine", "transformer").config.objective == "midstream"
    assert row_of("codes", "casia", "transformer (V = 8, C = 2)").config.learner.options == {
        "vocabulary": 8,
        "code_length": 2,
    }


def test_a_table_is_written_from_finished_runs(tmp_path):
    plan = make_plan("cost", ["oml"], seeds=2, settings=["precision=bf16"], stand_in="kanji")
    for job, error in zip(jobs_of(plan.configs, tmp_path), (0.03, 0.05, 0.06, 0.08), strict=True):
        row = replace(plan.rows[0], config=job.config)
        write_json(job.path / "result.json", made(row, job.config.seed, [error]))
    text = write_table(plan, tmp_path, "cpu")
    assert "oml (20 tasks) | 2 | 4.00 +- 1.41 | 3.2 +- 0.1 | +0.80 | +8.0" in text
    assert (tmp_path / "cost-kanji.md").read_text() == text
    twenty, hundred = json.loads((tmp_path / "cost-kanji.json").read_text())["rows"]
    assert hundred["test_mean"] == pytest.approx(7.0)
    assert (twenty["parameters_m"], twenty["paper_parameters_m"]) == (1.5, 1.5)
    assert twenty["paper_episodes_per_s"] == COST[20]["oml"].episodes_per_s
    with open(tmp_path / "cost-kanji.csv") as file:
        (first, _) = csv.DictReader(file)
    assert float(first["in_their_std"]) == pytest.approx(8.0)
    assert first["verdict"] == "other data, not comparable"


def test_a_dry_run_lists_what_is_to_do_and_how_long_it_takes(tmp_path, data_folder):
    plan = make_plan("table2", ["transformer"], seeds=2, settings=["steps=1000"])
    assert list(plan.absent) == ["casia", "msceleb"]
    (job, _) = jobs_of(plan.configs, tmp_path)
    write_json(job.path / "result.json", made(replace(plan.rows[0], config=job.config), 0, [0.1]))
    text = dry_run(plan, tmp_path)
    assert "sine-transformer-100x5-q5-paper-seed0-steps=1000  finished" in text
    # 100 s for 1,000 steps were measured just now
    assert "sine-transformer-100x5-q5-paper-seed1-steps=1000  2 min (NVIDIA H200)" in text
    assert "2 run(s), 2 min to go" in text
    assert "left out: no casia/Gnt1.0TrainPart1.zip" in text
    alone = make_plan("table1", ["omniglot", "pn"], stand_in="kanji")
    assert alone.absent.keys() == {"omniglot"}


def test_the_ledger_sorts_runs_into_tables(tmp_path):
    pn, transformer = (row_of("table1", "omniglot", name) for name in ("pn", "transformer"))
    kept = {
        "a.json": made(pn, 0, [0.038, 0.036]),
        "b.json": made(transformer, 0, [0.13, 0.15]),
        "c.json": made(transformer, 1, [0.14, 0.16]),
        "d.json": made(row_of("table1", "omniglot", "oml"), 0, [0.2], steps=4_000),
    }
    page = ledger(kept, {"table1 omniglot pn": "as it should"})
    assert (
        "| omniglot | pn | 1 | 3.70 +- 1.00 | 3.8 +- 0.1 | 0.00 +- 0.00 | reproduced: as it" in page
    )
    assert "| omniglot | transformer | 2 | 14.50 +- 0.71 | 13.7 +- 0.6 |" in page
    # 3.8 and 3.6 against 13 and 15 at seed 0
    assert "| omniglot | pn | transformer | -10.3 +- 1.1 | 1 | 2 |" in page
    assert page.index("## Cut short") < page.index("| omniglot | 20 | oml | 4,000 | 1 | 20.00")
    assert "sine: offline, oml, transformer, linear_transformer" in page
    for name in kept:
        write_json(tmp_path / "kept" / name, kept[name])
    assert write_ledger(tmp_path / "kept", tmp_path / "docs" / "page.md") == 4
    assert "(../kept/a.json)" in (tmp_path / "docs" / "page.md").read_text()


def test_a_result_of_an_older_version_is_read_as_its_recipe_has_it():
    row = row_of("table1", "omniglot", "transformer")
    old = made(row, 0, [0.1])
    old["config"]["benchmark"]["options"] = {"validation": 0.0}
    old["config"]["learner"]["options"] = {"gone": 3}
    assert essence(recorded(old)) == essence(row.config)
    old["config"]["benchmark"]["options"]["augment"] = True
    assert essence(recorded(old)) != essence(row.config)


def test_what_is_no_result_is_named(tmp_path):
    (tmp_path / "odd.json").write_text("[1, 2]")
    with pytest.raises(ValueError, match=r"odd\.json is no result of a run"):
        read_results(tmp_path)
    with pytest.raises(ValueError, match="there is no folder nowhere with results"):
        read_results(Path("nowhere"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["table3"], "no table 'table3' to reproduce; there are: table1, table2, resnet"),
        (["table1", "--only", "mnist"], "--only mnist: there is no such row; there are: cifar100"),
        (["table1", "--stand-in", "kana"], "no benchmark 'kana'; there are: casia"),
        (["table1", "--only", "sine"], "--only sine: there is no such row"),
        (["table2", "--only", "sine", "stepps=1"], "no setting 'stepps'; there are: recipe"),
        (["table1", "--seeds", "0"], "'--seeds'"),
        (["table2", "--only", "sine", "--ray", "nowhere:1"], "no Ray cluster at 'nowhere:1'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_answered_with_one_line(answer, arguments, said):
    ended = answer("reproduce", *arguments)
    assert ended.returncode == 2
    assert said in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1
