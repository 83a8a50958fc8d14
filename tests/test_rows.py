"""The rows of the paper's tables: its numbers, its settings, its learners."""

from pathlib import Path

import pytest

from handmade import made, row_of
from onepass.config import build_learner, resolved
from onepass.learner import count_parameters
from onepass.registry import BENCHMARKS
from onepass.reproduce import paper
from onepass.reproduce.paper import COST
from onepass.reproduce.rows import TABLES, Scale, essence, recorded, rows_of
from onepass.sweep import jobs_of


@pytest.mark.parametrize("table", TABLES)
def test_every_row_of_every_table_can_be_named_and_built(table):
    for recipe in ("paper", "tiny"):
        rows = rows_of(table, Scale(recipe))
        assert len({(row.column, row.name) for row in rows}) == len(rows)
        assert len(jobs_of([row.config for row in rows], Path("x"))) > 1
    # glyphs look like all others, and need no files
    images = tuple((name, "glyphs") for name in ("cifar100", "omniglot", "casia", "msceleb"))
    for row in rows_of(table, Scale("tiny", images)):
        config = row.config
        if config.learner.name != "offline":
            benchmark = BENCHMARKS.build(config.benchmark.name, **config.benchmark.options)
            build_learner(config.learner, benchmark, config.spec)


# every column of a table, each figure times its place among the names in alphabetical order, added
# up: from a list of the published numbers that is kept apart from this one
SUMS = {
    "table1, meta-test": (19942.7, 956.7),
    "table1, meta-train": (4368.5, 38.7),
    "table2": (4527.4612, 68.7331),
    "resnet": (2833.0725, 69.3077),
    "codes": (3.2, 0.2),
    "cost": (951.8, 1958.3, 9947.8, 105.5, 6.2),
}


def named(table):
    return {f"{column} {name}": cell for column, row in table.items() for name, cell in row.items()}


def test_no_published_number_was_lost_mistyped_or_exchanged():
    tables = {
        "table1, meta-test": named(paper.TABLE1_TEST),
        "table1, meta-train": named(paper.TABLE1_TRAIN),
        "table2": named(paper.TABLE2),
        "resnet": named(paper.RESNET),
        "codes": {f"{tokens} {length}": cell for (tokens, length), cell in paper.CODES.items()},
        "cost": {name: (*cost[:3], *cost.error) for name, cost in named(COST).items()},
    }
    for name, cells in tables.items():
        ordered = [cells[key] for key in sorted(cells)]
        columns = zip(*ordered, strict=True)
        added = [sum(n * value for n, value in enumerate(column, 1)) for column in columns]
        assert added == pytest.approx(SUMS[name]), name


# trainable, as published; the shapes of images are those of CASIA
PARAMETERS = {
    ("table1", "casia", "transformer"): 9_926_900,
    ("table1", "casia", "linear_transformer"): 39_330_036,
    ("table1", "casia", "performer"): 26_722_548,
    ("table1", "casia", "oml"): 1_513_697,
    ("table1", "casia", "anml"): 1_977_077,
    ("table1", "casia", "gemcl"): 1_503_458,
    ("table2", "sine", "oml"): 841_217,
    ("table2", "rotation", "transformer"): 10_435_810,
    ("table2", "completion", "transformer"): 10_696_416,
    ("resnet", "casia", "transformer (ResNet)"): 11_743_796,
    ("scaling", "casia", "transformer_s"): 2_344_516,
    ("scaling", "casia", "transformer_m"): 5_807_428,
    ("cost", "casia", "oml_xl (20 tasks)"): 11_511_521,
    ("cost", "casia", "oml (100 tasks)"): 1_554_657,
}


@pytest.mark.parametrize("key", PARAMETERS, ids=" ".join)
def test_a_row_builds_the_published_learner(key):
    table, column, name = key
    (row,) = [
        row
        for row in rows_of(table, Scale(instead=(("casia", "glyphs"),)))
        if (row.column, row.name) == (column, name)
    ]
    config = row.config
    benchmark = BENCHMARKS.build(config.benchmark.name, **config.benchmark.options)
    assert (
        count_parameters(build_learner(config.learner, benchmark, config.spec)) == PARAMETERS[key]
    )


def test_the_rows_have_the_published_settings():
    assert len(rows_of("table1", Scale())) == 32
    assert len(rows_of("table2", Scale())) == 26
    assert len(rows_of("resnet", Scale())) == 24
    for table in TABLES:
        for row in rows_of(table, Scale()):
            config = row.config
            assert (config.shots, config.queries, config.order) == (5, 5, "blocked")
            assert (config.steps, config.batch, config.rate) == (50_000, 16, 1e-4)
            assert (config.rate_at(9_999), config.rate_at(10_000)) == (1e-4, 5e-5)
            assert config.evaluation_episodes == 1_024
            assert (config.guidance, config.guided(9_999), config.guided(10_000)) == (
                1,
                True,
                False,
            )
            early = config.learner.name == "performer"
            late = table == "forgetting" and config.learner.name != "oml"
            assert config.objective_at(9_999) == ("midstream" if early or late else "final")
            assert config.objective_at(10_000) == ("midstream" if late else "final")
    rotation = row_of("table2", "rotation", "oml").config
    assert rotation.benchmark.name == "casia"
    assert rotation.benchmark.options == {
        "validation": False,
        "label_shift": False,
        "view": "rotation",
    }
    rates = {
        (row.column, row.config.tasks): resolved(row.config).learner.options["inner_rate"]
        for table in ("table1", "table2")
        for row in rows_of(table, Scale())
        if row.name == "oml"
    }
    assert {key: rate for key, rate in rates.items() if rate != 0.03} == {
        ("msceleb", 100): 0.003,
        ("rotation", 100): 0.0001,
    }
    assert row_of("table1", "casia", "gemcl").config.learner.options == {"density": "published"}
    assert row_of("codes", "casia", "transformer (V = 8, C = 2)").config.learner.options == {
        "vocabulary": 8,
        "code_length": 2,
    }


def test_a_result_of_an_older_version_is_read_as_its_recipe_has_it():
    row = row_of("table1", "omniglot", "transformer")
    old = made(row, 0, [0.1])
    old["config"]["benchmark"]["options"] = {"validation": 0.0}
    old["config"]["learner"]["options"] = {"gone": 3}
    assert essence(recorded(old)) == essence(row.config)
    old["config"]["benchmark"]["options"]["augment"] = True
    assert essence(recorded(old)) != essence(row.config)
