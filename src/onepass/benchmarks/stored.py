"""Benchmarks of stored images: those of the paper, and anyone's own."""

from collections.abc import Callable
from typing import Annotated

from pydantic import Field

from onepass.benchmarks.bank import ByClass, Shape, Stored
from onepass.benchmarks.images import Images
from onepass.benchmarks.views import ViewName
from onepass.data import READERS, Store, open_folder, open_npz, open_store
from onepass.data.folder import Colour
from onepass.data.store import OWN_TEST
from onepass.episodes import Split
from onepass.registry import BENCHMARKS, Positive, Share

Edge = Annotated[int, Field(ge=8, le=512, strict=True)]  # pixels


def _register(name: str, x_shape: Shape) -> None:
    @BENCHMARKS.add(name)
    def build(
        view: ViewName = "classify",
        augment: bool = False,
        label_shift: bool = True,
        validation: bool = True,
    ) -> Images:
        """Without `validation`, the classes held out for it are meta-trained on."""
        source = stored(name, x_shape, lambda: open_store(name), validation)
        return Images(source, view, augment, label_shift)


for _reader in READERS.values():
    _register(_reader.name, _reader.shape)


@BENCHMARKS.add("folder")
def folder(
    path: str,
    size: Edge = 32,
    colour: Colour = "auto",
    test: Share = OWN_TEST,
    fewest: Positive = 1,
    view: ViewName = "classify",
    augment: bool = False,
    label_shift: bool = True,
    validation: bool = True,
) -> Images:
    """A folder with a folder of pictures for each class.

    `test` is the share of the classes to meta-test; those with fewer pictures than `fewest` are
    left out.
    """
    store = open_folder(path, size, colour).split_anew(test, fewest)
    return benchmark_of(store, view, augment, label_shift, validation)


@BENCHMARKS.add("npz")
def npz(
    path: str,
    test: Share = OWN_TEST,
    fewest: Positive = 1,
    view: ViewName = "classify",
    augment: bool = False,
    label_shift: bool = True,
    validation: bool = True,
) -> Images:
    """An .npz file of `images` and `labels`; the other options as for a folder."""
    store = open_npz(path).split_anew(test, fewest)
    return benchmark_of(store, view, augment, label_shift, validation)


def benchmark_of(
    store: Store,
    view: ViewName = "classify",
    augment: bool = False,
    label_shift: bool = True,
    validation: bool = True,
) -> Images:
    """Episodes of anyone's store, such as `Store.from_arrays(images, labels)`."""
    source = stored(store.manifest.name, store.x_shape, lambda: store, validation)
    return Images(source, view, augment, label_shift)


def stored(name: str, x_shape: Shape, read: Callable[[], Store], validation: bool = True) -> Stored:
    """A source of the images of a store, which is read when they are first asked for.

    Without `validation`, the classes held out for it are meta-trained on.
    """
    splits: tuple[Split, ...] = ("train", "validation", "test") if validation else ("train", "test")
    return Stored(name, x_shape, splits, lambda: by_class(read(), validation))


def by_class(store: Store, validation: bool = True) -> ByClass:
    splits = store.manifest.splits
    if not validation:
        train = sorted(splits["train"] + splits["validation"])
        splits = {"train": train, "test": splits["test"]}
    return ByClass(store.images, store.manifest.counts, splits, store.manifest.classes)
