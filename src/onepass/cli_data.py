"""The commands `onepass data ...`."""

import json
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from onepass.options import AsJson, Data, use_data

data_app = typer.Typer(
    no_args_is_help=True, help="See and prepare data sets.\n\nExample: onepass data list"
)
Name = Annotated[str, Argument(help="A data set such as omniglot, folder:PATH or npz:PATH.")]


@data_app.command("list")
def data_list(data: Data = None, as_json: AsJson = False) -> None:
    """Which data sets there are, and which are prepared.

    Example: onepass data list
    """
    use_data(data)
    from onepass.data import data_sets

    sets = data_sets()
    if as_json:
        print(json.dumps(sets, indent=2))
        return
    for name, facts in sets.items():
        print(f"{name:<12}{facts['state']:<14}{facts['where']}")
    print("\nDrawn as needed: glyphs, and kanji (its strokes are a package: onepass[kanji]).")
    print("Your own pictures: folder:PATH (a folder for each class), npz:PATH (images, labels).")


@data_app.command("prepare")
def data_prepare(
    name: Name,
    agree: Annotated[
        bool, Option("--agree", help="Download on the owner's terms, where there are some.")
    ] = False,
    data: Data = None,
) -> None:
    """Decode a data set once; downloads what is not there, checked.

    Example: onepass data prepare omniglot --data ~/downloads
    """
    use_data(data)
    from onepass.data import prepare_data

    store = prepare_data(name, agree)
    file = getattr(store.images, "filename", None)
    where = f" in {Path(file).parent}" if file else ""
    print(f"{name} is ready{where}: {_summary(store)}")


@data_app.command("show")
def data_show(
    name: Annotated[str, Argument(help="A data set, folder:PATH, npz:PATH, or a benchmark.")],
    settings: Annotated[
        list[str] | None,
        Argument(metavar="[KEY=VALUE]...", help="As a learner sees it: view=rotation augment=true"),
    ] = None,
    split: Annotated[str | None, Option(help="train, validation or test; default: all.")] = None,
    classes: Annotated[int, Option(min=1, help="How many classes to show.")] = 12,
    samples: Annotated[int, Option(min=1, help="How many images of each.")] = 10,
    out: Annotated[Path | None, Option(help="The PNG; default: NAME.png here.")] = None,
    verify: Annotated[bool, Option("--verify", help="Check every byte of the store.")] = False,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """What is in a data set, and a contact sheet of it.

    Example: onepass data show kanji --split test view=rotation
    """
    use_data(data)
    from onepass.data import OWN, READERS, open_store, prepare_data
    from onepass.sheet import rows_of_store, save_sheet

    kind, _, place = name.partition(":")
    path = out or Path(f"{Path(place).stem or kind}.png")
    if kind not in (*READERS, *OWN) or settings or split:
        _show_benchmark(name, settings or [], split or "train", (classes, samples), path, as_json)
        return
    store = prepare_data(name) if verify else open_store(name)
    save_sheet(rows_of_store(store, classes, samples), f"{name}: {_summary(store)}", path)
    if as_json:
        from dataclasses import asdict

        print(json.dumps(asdict(store.manifest) | {"sheet": str(path)}, indent=2))
        return
    _print_manifest(store)
    print(f"sheet: {path}")


def _show_benchmark(name, settings, split, size, path, as_json) -> None:
    """A split of what a learner is shown, in this view of it."""
    from onepass.config import parse_options
    from onepass.registry import BENCHMARKS
    from onepass.sheet import rows_of_benchmark, save_sheet

    options = parse_options([setting.removeprefix("benchmark.") for setting in settings])
    benchmark = BENCHMARKS.build(name, **options)
    what = ", ".join([name, f"{split} split", *settings])
    title = ". ".join(filter(None, [what, benchmark.credit]))
    save_sheet(rows_of_benchmark(benchmark, split, *size), title, path)
    facts = {"name": name, "split": split, "options": options, "x_shape": benchmark.x_shape}
    if as_json:
        print(json.dumps(facts | {"credit": benchmark.credit, "sheet": str(path)}, indent=2))
        return
    print(f"{title}\nsheet: {path}")


def _summary(store) -> str:
    images, (channels, height, width) = len(store.images), store.images.shape[1:]
    classes = len(store.manifest.classes)
    return f"{images:,} images of {classes:,} classes, {channels}x{height}x{width}"


def _print_manifest(store) -> None:
    manifest = store.manifest
    splits = ", ".join(f"{name} {len(ids):,}" for name, ids in manifest.splits.items())
    print(f"{manifest.name}: {_summary(store)}")
    print(f"{'in a class':<12}{min(manifest.counts):,} to {max(manifest.counts):,}")
    print(f"{'classes':<12}{splits}")
    for key in ("made", "source", "licence"):
        print(f"{key:<12}{getattr(manifest, key)}")
    for reason, skipped in manifest.skipped.items():
        print(f"{'skipped':<12}{skipped['records']:,} {reason} (the first: {skipped['first']})")
