"""Kanji: every character in one split, and what is invented follows from its number."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from onepass.benchmarks.hand import bounds
from onepass.benchmarks.invent import LONGEST, SMALLEST, invent, strokes_in_a_row, symmetry
from onepass.benchmarks.kanji import Kanji, kanji, split_of
from onepass.benchmarks.kanjivg import read_kanji
from onepass.describe import describe
from onepass.episodes import EpisodeSpec
from onepass.recipes import make_config
from onepass.registry import BENCHMARKS
from onepass.sheet import rows_of_benchmark

try:
    NAMES, STROKES = read_kanji()
except ValueError as error:
    pytest.skip(str(error), allow_module_level=True)


def test_there_are_as_many_characters_as_the_docs_say():
    sizes = {split: len(names) for split, names in Kanji().names.items()}
    assert sizes == {"train": 4954, "validation": 553, "test": 989}
    assert len(set(NAMES)) == 6496


def test_every_character_is_in_one_split():
    names = [name for part in Kanji().names.values() for name in part]
    assert sorted(names) == sorted(NAMES)


def test_a_split_follows_from_the_character_alone():
    # written down once: another machine, version or set of characters must not move them
    assert [split_of(name) for name in "一三日二月口"] == ["train"] * 3 + ["test"] * 3
    assert [split_of(name) for name in "水金"] == ["validation"] * 2


def test_without_validation_those_characters_are_trained_on():
    merged, plain = Kanji(validation=False), Kanji()
    assert merged.splits == ("train", "test")
    assert set(merged.names["train"]) == {*plain.names["train"], *plain.names["validation"]}
    assert merged.names["test"] == plain.names["test"]


def test_no_two_characters_have_the_same_strokes():
    rows = torch.cat([STROKES.points.flatten(1), STROKES.stroke.float()], 1)
    assert len(rows.unique(dim=0)) == len(NAMES)


def test_strokes_are_on_the_page():
    low, high = bounds(STROKES.points, STROKES.count)
    assert low.min() > -0.05
    assert high.max() < 1.05
    assert STROKES.stroke.max() == 29


@pytest.mark.parametrize("invented", [0, 2])
def test_meta_training_alone_has_invented_characters(invented):
    source = Kanji(invented=invented)
    assert source.classes("train") == (1 + invented) * 4954
    assert source.classes("test") == 989
    real = [NAMES.index(name) for name in source.names["train"]]
    assert torch.equal(source.strokes("train").points[:4954], STROKES.points[real])
    assert len(source.strokes("train").points) == source.classes("train")


def test_an_invented_character_follows_from_its_number_alone():
    ids = torch.arange(50) * 977
    together = invent(STROKES.rows(torch.arange(50)), ids)
    for i in (0, 7, 49):
        alone = invent(STROKES.rows(torch.tensor([i])), ids[i : i + 1])
        for one, all_ in zip(alone, together, strict=True):
            assert_close(one[0], all_[i], rtol=0, atol=1e-6)


def test_invented_characters_are_few_strokes_of_some_size():
    new = invent(STROKES.rows(torch.arange(2000)), torch.arange(2000))
    assert set((new.stroke.amax(1) + 1).tolist()) == set(range(1, LONGEST + 1))
    low, high = bounds(new.points, new.count)
    edge = (high - low).amax(1)
    assert edge.min() >= SMALLEST - 1e-5
    assert edge.max() <= 1 + 1e-5
    assert all(part.isfinite().all() for part in new)
    assert len(new.points.flatten(1).unique(dim=0)) == 2000


def test_a_part_is_some_strokes_in_a_row():
    character = STROKES.rows(torch.tensor([NAMES.index("語")] * 3))
    run, begin = torch.tensor([0.0, 0.34, 0.99]), torch.tensor([0.0, 0.5, 0.999])
    part = strokes_in_a_row(character, run, begin)
    # 14 strokes: the first; three from the sixth of twelve places on; the last six
    for i, wanted in enumerate([[0], [6, 7, 8], [8, 9, 10, 11, 12, 13]]):
        n = int(part.count[i])
        inside = torch.isin(character.stroke[i], torch.tensor(wanted))
        inside &= torch.arange(len(inside)) < character.count[i]
        assert torch.equal(part.points[i, :n], character.points[i, inside])
        assert torch.equal(part.stroke[i, :n], character.stroke[i, inside] - wanted[0])


def test_there_are_eight_symmetries():
    quarter = torch.arange(4).repeat(2) / 4
    maps = symmetry(quarter, torch.tensor([0.0] * 4 + [0.9] * 4))
    assert len(maps.unique(dim=0)) == 8
    assert_close(maps @ maps.mT, torch.eye(2).expand(8, 2, 2))


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_episodes_are_of_the_classes_they_say(split):
    spec = EpisodeSpec(tasks=10, shots=4, queries=4)
    train, test, _ = kanji().sample(split, spec, 4, torch.Generator().manual_seed(0))
    coarse = [F.avg_pool2d(part.x.flatten(0, 1), 4).flatten(1) for part in (train, test)]
    stream, queries = (part.unflatten(0, (4, 10, 4)) for part in coarse)
    nearest = torch.cdist(queries.flatten(1, 2), stream.mean(2)).argmin(-1)
    # chance is 0.1; six seeds gave 0.61 to 0.68 in meta-training and 0.30 to 0.41 elsewhere
    assert (nearest == test.y).float().mean() > (0.5 if split == "train" else 0.2)


def test_too_many_tasks_are_refused_with_both_numbers():
    with pytest.raises(ValueError, match="validation split has 553 classes, and tasks is 600"):
        kanji().sample("validation", EpisodeSpec(tasks=600), 1, torch.Generator())


@pytest.mark.parametrize("wrong", [{"size": 7}, {"invented": -1}])
def test_bad_numbers_are_refused(wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(ValueError, match=f"{name}.*{value}|{value}"):
        BENCHMARKS.build("kanji", **wrong)


def test_describe_gives_the_credit_without_reading_anything(monkeypatch):
    monkeypatch.setattr("onepass.benchmarks.kanji.read_kanji", None)
    described = describe(make_config("paper", "kanji", "pn"))
    assert "KanjiVG" in described["credit"]
    assert "CC BY-SA" in described["credit"]
    assert "credit" not in describe(make_config("paper", "glyphs", "pn"))


def test_a_sheet_names_the_characters():
    benchmark = BENCHMARKS.build("kanji")
    rows = rows_of_benchmark(benchmark, "test", 4, 3)
    names = [name for name, _ in rows]
    assert names[0] == benchmark.source.names["test"][0]
    assert len(set(names)) == 4
    assert all(images.shape == (3, 1, 32, 32) for _, images in rows)
    *_, (last, _) = rows_of_benchmark(benchmark, "train", 4, 3)
    assert last == f"{benchmark.source.names['train'][-1]}, invented 8"
