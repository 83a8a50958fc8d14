"""The commands that measure speed. Heavy imports happen inside, so that help is instant."""

import json
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from onepass.options import (
    Data,
    Device,
    JsonFile,
    names_and_settings,
    use_data,
    whole_numbers,
)
from onepass.progress import tell


def bench(
    learners: Annotated[
        list[str] | None,
        Argument(
            metavar="LEARNER|KEY=VALUE",
            help="Which learners, and settings for all of them; default: those of the paper.",
        ),
    ] = None,
    tasks: Annotated[str | None, Option(help="Tasks in an episode, such as 20,100.")] = None,
    steps: Annotated[
        int | None, Option(min=1, help="Steps in each repeat; default: about half a second.")
    ] = None,
    profile: Annotated[
        bool, Option("--profile", help="Show which kernels take longest, too.")
    ] = False,
    device: Device = "auto",
    data: Data = None,
    json_file: JsonFile = None,
    job: Annotated[str | None, Option(hidden=True)] = None,
) -> None:
    """Meta-training speed and memory, against the machine's ceilings and the published code.

    Real steps under the recipe `paper`, each learner in a process of its own, on Omniglot where its
    files are and on noise of the same shape otherwise. On a CPU the sizes are small.

    Example: onepass bench transformer pn --tasks 20,100 --json bench.json
    """
    use_data(data)
    from onepass.bench import bench, do_job
    from onepass.tables import print_bench

    if job is not None:
        print(json.dumps(do_job(job)))
        return
    names, settings = names_and_settings(learners)
    counts = whole_numbers("--tasks", tasks) if tasks is not None else []
    rows = bench(names, counts, settings, device, steps, profile, json_file, tell)
    print_bench(rows)
    if failed := [row for row in rows if row.failed]:
        raise ValueError(f"{len(failed)} of {len(rows)} row(s) failed")


def cost(
    learners: Annotated[
        list[str],
        Argument(
            metavar="RUN|LEARNER|KEY=VALUE",
            help="Folders of finished runs, or learners by name, with settings for the latter.",
        ),
    ],
    lengths: Annotated[
        str, Option(help="After how many examples to look.")
    ] = "1,10,100,1000,10000",
    device: Device = "auto",
    json_file: JsonFile = None,
    out: Annotated[Path, Option(help="Where the picture goes.")] = Path("cost.png"),
) -> None:
    """Streaming cost: time to observe one example and to answer one query, and bytes of state.

    A learner by name is built fresh, under the recipe `paper` for Omniglot's images and 20 tasks;
    no files are needed. The stream is fed for real, and asked about at each length.

    Example: onepass cost transformer linear_transformer --lengths 1,100,10000
    """
    from onepass.cost import cost
    from onepass.tables import print_cost

    names, settings = names_and_settings(learners)
    found = cost(names, settings, whole_numbers("--lengths", lengths), device, json_file, out)
    print_cost(found)
    print(f"picture in {out}")
