"""The command `onepass export`."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from onepass.options import RunPath


def export(
    run: RunPath,
    folder: Annotated[Path, Argument(help="Where to; made if it is not there.")],
    half: Annotated[bool, Option("--half", help="Keep the weights in 16 bits.")] = False,
    programs: Annotated[
        bool, Option("--programs", help="Also encode, observe and predict by torch.export.")
    ] = False,
) -> None:
    """A finished run as a model to hand on: weights, config and card, as model hubs expect.

    Example: onepass export runs/quickstart my-model --half
    """
    from onepass.models import export as write_model
    from onepass.models import open_folder
    from onepass.programs import one_example, write_programs
    from onepass.run import load_run

    if programs:
        # told before anything is written
        _, benchmark, learner = load_run(run)
        one_example(learner, benchmark.x_shape)
    write_model(run, folder, half)
    if programs:
        write_programs(*open_folder(folder), folder)
    print(f"{folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}")
