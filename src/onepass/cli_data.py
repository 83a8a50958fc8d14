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
    print("\nYour own pictures: folder:PATH (a folder for each class), npz:PATH (images, labels).")


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
    classes: Annotated[int, Option(min=1, help="How many classes to show.")] = 12,
    samples: Annotated[int, Option(min=1, help="How many images of each.")] = 10,
    out: Annotated[Path | None, Option(help="The PNG; default: NAME.png here.")] = None,
    verify: Annotated[bool, Option("--verify", help="Check every byte of the store.")] = False,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """What is in a data set, and a contact sheet of it.

    Example: onepass data show omniglot --out omniglot.png
    """
    use_data(data)
    from onepass.data import OWN, READERS, open_store, prepare_data
    from onepass.registry import BENCHMARKS
    from onepass.sheet import rows_of_benchmark, rows_of_store, save_sheet

    kind, _, place = name.partition(":")
    path = out or Path(f"{Path(place).stem or kind}.png")
    if kind not in (*READERS, *OWN):
        benchmark = BENCHMARKS.build(name)
        title = ". ".join(filter(None, [f"{name}, drawn as needed", benchmark.credit]))
        save_sheet(rows_of_benchmark(benchmark, classes, samples), title, path)
        facts = {"name": name, "x_shape": benchmark.x_shape, "credit": benchmark.credit}
        if as_json:
            print(json.dumps(facts | {"sheet": str(path)}, indent=2))
            return
        print(f"{title}\nsheet: {path}")
        return
    store = prepare_data(name) if verify else open_store(name)
    save_sheet(rows_of_store(store, classes, samples), f"{name}: {_summary(store)}", path)
    if as_json:
        from dataclasses import asdict

        print(json.dumps(asdict(store.manifest) | {"sheet": str(path)}, indent=2))
        return
    _print_manifest(store)
    print(f"sheet: {path}")


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
