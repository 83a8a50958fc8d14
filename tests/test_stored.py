"""Benchmarks of stored images, each on a tiny set in its official format: laws, and training."""

import numpy as np
import pytest
import torch

from onepass import checks
from onepass.benchmarks.stored import benchmark_of, by_class
from onepass.config import Component
from onepass.data import READERS, Store, cifar100, open_store
from onepass.episodes import EpisodeSpec
from onepass.registry import BENCHMARKS
from onepass.training import train
from test_casia import page, record
from test_cifar100 import FILES, packed
from test_folder import picture
from test_msceleb import jpeg, line


def make_casia(folder) -> str:
    (folder / "casia").mkdir()
    for writer in range(6):
        signs = [chr(0x4E00 + k) for k in range(24)]
        content = b"".join(record(sign, page(k + writer)) for k, sign in enumerate(signs))
        (folder / "casia" / f"{writer}.gnt").write_bytes(content)
    return "casia"


def make_msceleb(folder) -> str:
    (folder / "msceleb").mkdir()
    lines = [line(f"m.{k:02}", jpeg(9 * k + n, 8, 8)) for n in range(20) for k in range(20)]
    (folder / "msceleb" / "FaceImageCroppedWithAlignment.tsv").write_bytes(b"".join(lines))
    return "msceleb"


def make_cifar100(folder) -> str:
    (folder / "cifar100").mkdir()
    twice = FILES | {"train.bin": FILES["train.bin"] * 2}
    (folder / "cifar100" / "cifar-100-binary.tar.gz").write_bytes(packed(twice))
    return "cifar100"


def make_folder(folder) -> str:
    for k in range(20):
        (folder / "mine" / f"class {k:02}").mkdir(parents=True)
        for n in range(6):
            (folder / "mine" / f"class {k:02}" / f"{n}.png").write_bytes(picture(10 * k + n))
    return f"folder:{folder / 'mine'}"


def make_npz(folder) -> str:
    images = np.random.default_rng(0).integers(0, 256, (120, 32, 32, 3)).astype(np.uint8)
    np.savez(folder / "mine.npz", images=images, labels=np.arange(120) % 20)
    return f"npz:{folder / 'mine.npz'}"


MAKERS = [make_casia, make_msceleb, make_cifar100, make_folder, make_npz]


@pytest.fixture(params=MAKERS, ids=lambda make: make.__name__.removeprefix("make_"))
def name(request, data_folder, monkeypatch) -> str:
    monkeypatch.setattr(cifar100, "EACH", 5)
    return request.param(data_folder)


@pytest.mark.parametrize("law", checks.BENCHMARK_LAWS, ids=lambda law: law.__name__)
def test_stored_images_obey_the_laws(name, law):
    law(BENCHMARKS.build(name))


@pytest.mark.parametrize("view", ["classify", "completion", "rotation"])
def test_a_step_is_trained_on_stored_images(name, view, tiny, tmp_path):
    component = Component(name, {"view": view})
    config = tiny(benchmark=component, steps=1, evaluation_episodes=2, evaluation_batch=2)
    train(config, tmp_path / "run", "cpu")
    assert (tmp_path / "run" / "result.json").is_file()


def test_without_validation_its_classes_are_meta_trained_on(name):
    store = open_store(name)
    with_it, without = by_class(store), by_class(store, validation=False)
    assert set(with_it.splits["train"]) < set(without.splits["train"])
    assert with_it.splits["test"] == without.splits["test"]
    assert sorted([*without.splits["train"], *without.splits["test"]]) == list(
        range(len(store.manifest.classes))
    )
    assert BENCHMARKS.build(name, validation=False).splits == ("train", "test")


def test_every_reader_is_a_benchmark():
    assert set(READERS) <= set(BENCHMARKS)


def test_shapes_are_known_before_anything_is_read(data_folder):
    shapes = {name: BENCHMARKS.build(name).x_shape for name in READERS}
    assert shapes == {
        "omniglot": (1, 32, 32),
        "cifar100": (3, 32, 32),
        "casia": (1, 32, 32),
        "msceleb": (3, 32, 32),
    }


def test_python_of_ones_own_arrays():
    images = np.zeros((60, 8, 8), np.uint8)
    store = Store.from_arrays(images, np.arange(60) % 10, test=0.5)
    assert len(store.manifest.splits["test"]) == 5
    assert len(store.split_anew(0.2).manifest.splits["test"]) == 2
    benchmark = benchmark_of(store)
    train, _, _ = benchmark.sample("test", EpisodeSpec(5, 3, 3), 2, torch.Generator())
    assert train.x.shape == (2, 15, 1, 8, 8)


def test_small_classes_can_be_left_out():
    labels = [k for k in range(10) for _ in range(k + 1)]
    store = Store.from_arrays(np.zeros((55, 8, 8), np.uint8), labels).split_anew(0.5, fewest=5)
    assert sorted(number for ids in store.manifest.splits.values() for number in ids) == [
        4,
        5,
        6,
        7,
        8,
        9,
    ]
    benchmark_of(store).source.check("test", EpisodeSpec(3, 3, 2))


def test_a_name_that_takes_an_argument_says_so():
    with pytest.raises(ValueError, match="'folder' needs path: say folder:PATH"):
        BENCHMARKS.build("folder")
    with pytest.raises(ValueError, match="folder: needs its path, such as folder:PATH"):
        BENCHMARKS.build("folder:")
    with pytest.raises(ValueError, match="'omniglot' takes nothing after a colon"):
        BENCHMARKS.build("omniglot:here")
    assert "path" not in BENCHMARKS.options("folder:here")
    assert "size" in BENCHMARKS.options("folder:here")
