"""The page of results: every file in its place, nothing that is not in a file."""

from dataclasses import replace
from pathlib import Path

import pytest

from handmade import forgotten, made, row_of
from onepass.config import override
from onepass.files import write_json
from onepass.reproduce.kept import keep_run, read_reasons, read_results
from onepass.reproduce.ledger import ledger, write_ledger
from onepass.reproduce.rows import Scale, rows_of


def test_the_ledger_sorts_runs_into_tables(tmp_path):
    pn, transformer = (row_of("table1", "omniglot", name) for name in ("pn", "transformer"))
    kept = {
        "a.json": made(pn, 0, [0.038, 0.036]),
        "b.json": made(transformer, 0, [0.13, 0.15]),
        "c.json": made(transformer, 1, [0.14, 0.16]),
        "d.json": made(row_of("table1", "omniglot", "oml"), 0, [0.2], steps=4_000),
    }
    page = ledger(kept, {"table1 omniglot pn": "as it should"})
    assert "| omniglot | pn | 1 | 3.70 +- 1.00 | 3.8 +- 0.1 | -1.0 | 0.00 +- 0.00 |" in page
    assert "| 0.0 +- 0.0 | reproduced: as it should |" in page
    assert "| omniglot | transformer | 2 | 14.50 +- 0.71 | 13.7 +- 0.6 |" in page
    # 3.8 and 3.6 against 13 and 15 at seed 0
    assert "| omniglot | 20 | pn | transformer | -10.3 +- 1.1 | 1 | 2 |" in page
    assert page.index("## Cut short") < page.index(
        "| omniglot | 20 | oml | 4,000 | all stages | 1 | 20"
    )
    assert "  - sine: offline, oml, transformer, linear_transformer\n" in page
    # that the data in the place of others was not run on either is said too
    assert "  - casia (kanji in its place): offline, pn, gemcl, oml, anml, transformer" in page
    for name in kept:
        write_json(tmp_path / "kept" / name, kept[name])
    assert write_ledger(tmp_path / "kept", tmp_path / "docs" / "page.md") == 4
    assert "(../kept/a.json)" in (tmp_path / "docs" / "page.md").read_text()


def test_the_ledger_has_costs_and_what_runs_lose(tmp_path):
    rows = rows_of("cost", Scale(instead=(("casia", "kanji"),)))
    (small,) = [row for row in rows if row.name == "transformer_s (20 tasks)"]
    lost = row_of("forgetting", "sine", "transformer")
    for name, row, changes in (
        ("small", small, {}),
        ("lost", lost, {"steps": 10_000}),
    ):
        folder = tmp_path / "runs" / name
        write_json(folder / "result.json", made(row, 0, [0.1], **changes))
        if name == "lost":
            write_json(folder / "forgetting.json", forgotten([0.0, 0.1, 0.3], -0.2))
        keep_run(folder, tmp_path / "results")
    assert write_ledger(tmp_path / "results", tmp_path / "page.md") == 2
    page = (tmp_path / "page.md").read_text()
    # parameters, memory and speed, ours and the paper's
    assert "| 1.5 | 2.4 | 2.5 | 4.3 | 80.0 | 278.5 | other data: not comparable |" in page
    # what is short says so by its steps
    assert "| sine | transformer | 10,000 | 1 | 0.3000 +- 0.0100 | 0.2000 +- 0.0100 | 32 |" in page
    # it was seen what this one loses, and of no other
    missed = page.partition("- **forgetting**")[2].partition("- **cost**")[0]
    assert "  - sine: oml, linear_transformer\n" in missed
    # a step that was timed alone says more
    write_json(tmp_path / "results" / "bench" / "old.json", [timed(1.0, 10.0, "2026-01-02")])
    newest = [timed(0.5, 999.0, "2026-01-03"), timed(9.0, 9.0, "2026-01-04", device="cpu")]
    write_json(tmp_path / "results" / "bench" / "new.json", newest)
    write_ledger(tmp_path / "results", tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert "| 1.5 | 2.4 | 0.5 | 4.3 | 999.0 | 278.5 | other data: not comparable |" in page
    write_json(tmp_path / "runs" / "small" / "result.json", made(small, 1, [0.1]))
    with pytest.raises(ValueError, match=r"small\.json is another run's: rename the folder"):
        keep_run(tmp_path / "runs" / "small", tmp_path / "results")


def test_a_seed_counts_once_and_another_schedule_is_another_line():
    row = row_of("scaling", "sine", "transformer_s")
    short = replace(row, config=replace(row.config, steps=10_000))
    begun = replace(row, config=replace(short.config, halve_every=10_000, guidance_steps=10_000))
    results = {
        "a.json": made(short, 0, [0.1]),
        "b.json": made(short, 0, [0.3], date="2026-01-01T03:04:05+00:00"),
        "c.json": made(short, 1, [0.2]),
        "d.json": made(begun, 2, [0.9]),
    }
    lines = [line for line in ledger(results, {}).splitlines() if "| 10,000 |" in line]
    start = "| sine | 100 | transformer_s | 10,000 |"
    whole, beginning = (line for line in lines if line.startswith(start))
    # of seed 0, the newer run
    assert whole.startswith(f"{start} all stages | 2 | 0.1500 +- 0.0707 |")
    assert beginning.startswith(f"{start} the beginning | 1 | 0.9000 +- 0.0100 |")


def timed(gb, speed, date, device="cuda"):
    """A row of `onepass bench --json`."""
    names = {
        "learner": "transformer_s",
        "tasks": 20,
        "device": device,
        "failed": None,
        "settings": [],
    }
    return names | {"peak_gb": gb, "episodes_per_s": speed, "date": date}


def test_a_run_of_several_tables_is_compared_and_costed_once():
    rows = rows_of("table1", Scale(instead=(("casia", "kanji"),)))
    pn, oml, transformer = (
        next(row for row in rows if (row.column, row.name) == ("casia", name))
        for name in ("pn", "oml", "transformer")
    )
    kept = {
        "a.json": made(pn, 1, [0.01, 0.02]),
        "b.json": made(oml, 1, [0.10, 0.30]),
        "c.json": made(transformer, 0, [0.02, 0.03]),
        "d.json": made(row_of("table1", "omniglot", "pn"), 0, [0.03]),
    }
    page = ledger(kept, {})
    # rows of table 1 already, and shown with their cost all the same
    assert "| oml (20 tasks) | 1 | 20.00 +- 1.00 |" in page
    # seeds 0 and 1 were asked other episodes, so that OML is held against PN
    assert page.count("| oml | pn | +18.5") == 1
    assert "| oml | transformer |" not in page
    assert "common with another: omniglot: pn; casia (kanji in its place): transformer." in page


def test_the_ledger_has_scores_on_other_data(tmp_path):
    result = made(row_of("table1", "omniglot", "pn"), 0, [0.02, 0.04])
    folder = tmp_path / "runs" / "pn"
    write_json(folder / "result.json", result)
    asked = {"split": "test", "tasks": 5, "shots": 1} | result["meta_test"]
    for name, error in (("omniglot", 0.5), ("kanji", 0.071)):
        score = asked | {"benchmark": name, "error": error, "stderr": 0.002, "episodes": 1_024}
        write_json(folder / "evaluations" / f"{name}.json", score)
    keep_run(folder, tmp_path / "results")
    assert write_ledger(tmp_path / "results", tmp_path / "page.md") == 1
    page = (tmp_path / "page.md").read_text()
    (line,) = [line for line in page.splitlines() if "kanji, meta-test" in line]
    assert line.startswith("| omniglot | pn | 50,000 | kanji, meta-test | 5 x 1 | 1,024 |")
    assert "| 7.10 +- 0.20 | 3.00 +- 1.00 | [json](results/pn.elsewhere.json) |" in line
    assert "| omniglot, meta-test |" not in page


def test_what_is_changed_stands_beside_the_same_question_without_it():
    instead = Scale(instead=(("casia", "kanji"),))
    plain, rotated = (
        next(row for row in rows_of("table2", instead) if (row.column, row.name) == asked)
        for asked in (("casia", "transformer"), ("rotation", "transformer"))
    )
    changed = replace(rotated, config=override(rotated.config, ["learner.dropout=0.25"]))
    results = {
        "plain.json": made(plain, 0, [0.02]),
        "rotated.json": made(rotated, 0, [0.03]),
        "changed.json": made(changed, 0, [0.05]),
    }
    (line,) = [text for text in ledger(results, {}).splitlines() if "dropout=0.25" in text]
    # what takes the place of CASIA is said here too
    assert line.startswith("| rotation (kanji in its place) | 100 | transformer |")
    assert "| 0.0500 +- 0.0100 | 0.0000 +- 0.0000 | 0.0300 +- 0.0100 | [json]" in line


def test_reasons_are_of_rows_that_there_are(tmp_path):
    assert read_reasons(tmp_path) == {}
    path = tmp_path / "reasons.toml"
    path.write_text('"table1 casia (kanji in its place) pn" = "other characters"')
    assert list(read_reasons(tmp_path).values()) == ["other characters"]
    path.write_text('"table1 omniglot pm" = "mistyped"')
    with pytest.raises(ValueError, match="no row 'table1 omniglot pm'; a key is TABLE BENCHMARK"):
        read_reasons(tmp_path)
    path.write_text("table1 = ")
    with pytest.raises(ValueError, match=r"reasons\.toml is no TOML"):
        read_reasons(tmp_path)


def test_a_short_run_says_what_is_known_of_it():
    row = row_of("table1", "omniglot", "oml")
    short = {"a.json": made(row, 0, [0.2], steps=4_000)}
    page = ledger(short, {"table1 omniglot oml": "overfits later"})
    assert "| 20.00 +- 1.00 | 24.8 +- 2.2 | 0.00 +- 0.00 | overfits later |" in page
    assert "worse" not in page.partition("## Cut short")[2]


def test_what_is_no_result_is_named(tmp_path):
    (tmp_path / "odd.json").write_text("[1, 2]")
    with pytest.raises(ValueError, match=r"odd\.json is no result of a run"):
        read_results(tmp_path)
    with pytest.raises(ValueError, match="there is no folder nowhere with results"):
        read_results(Path("nowhere"))
    result = made(row_of("table1", "omniglot", "pn"), 0, [0.03])
    without = {key: value for key, value in result.items() if key != "steps"}
    write_json(tmp_path / "odd.json", without)
    with pytest.raises(ValueError, match=r"odd\.json is no result of a run: it lacks steps"):
        read_results(tmp_path)
    unknown = result["config"] | {"learner": {"name": "mine", "options": {}}}
    write_json(tmp_path / "odd.json", result | {"config": unknown})
    with pytest.raises(ValueError, match=r"odd\.json is no result of a run: no learner 'mine'"):
        read_results(tmp_path)
    write_json(tmp_path / "odd.json", result)
    for ending, content, said in (
        (".forgetting.json", {"tasks": 5}, r"odd\.forgetting\.json: "),
        (".elsewhere.json", {"tasks": 5}, r"odd\.elsewhere\.json: "),
    ):
        write_json(tmp_path / f"odd{ending}", content)
        with pytest.raises(ValueError, match=said):
            write_ledger(tmp_path, tmp_path / "page.md")
        (tmp_path / f"odd{ending}").rename(tmp_path / f"lost{ending}")
        with pytest.raises(ValueError, match=rf"lost{ending} lies beside no lost\.json"):
            write_ledger(tmp_path, tmp_path / "page.md")
        (tmp_path / f"lost{ending}").unlink()
