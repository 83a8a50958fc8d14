"""The commands for many runs: sweep, reproduce, ledger."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from onepass.options import Data, Device, Settings, use_data

Jobs = Annotated[int | None, Option(min=1, help="Runs at once; default: one for each place.")]
PerCard = Annotated[int, Option(min=1, help="Runs that share a CUDA card.")]
Ray = Annotated[str | None, Option(help="A Ray cluster: HOST:PORT, auto, or local to start one.")]


def add_sweep_commands(app: typer.Typer) -> None:
    for command in (sweep, reproduce, ledger):
        app.command()(command)


def sweep(
    file: Annotated[Path, Argument(help="Python that defines configs, a list of Config.")],
    out: Annotated[Path, Option(help="Where the runs go, a folder each.")] = Path("runs"),
    jobs: Jobs = None,
    per_card: PerCard = 1,
    ray: Ray = None,
    device: Device = "auto",
    data: Data = None,
) -> None:
    """Run a list of configs, several at once; run it again to go on after a stop.

    Example: onepass sweep mine.py --out runs/mine --jobs 2
    """
    use_data(data)
    from onepass.sweep import jobs_of, load_configs, report_failures

    configs = load_configs(file)
    failed = _run(configs, out, device, jobs, per_card, ray)
    runs = len(jobs_of(configs, out))
    report_failures(failed, runs)
    print(f"{runs} run(s) in {out}")


def reproduce(
    what: Annotated[
        str,
        Argument(help="table1, table2, resnet, codes, scaling, forgetting or cost."),
    ],
    settings: Settings = None,
    only: Annotated[
        list[str] | None, Option(help="A benchmark or a learner; may be given several times.")
    ] = None,
    seeds: Annotated[int, Option(min=1, help="Runs of each row, from seed 0 on.")] = 1,
    steps: Annotated[int | None, Option(min=1, help="Cut the runs short.")] = None,
    tiny: Annotated[bool, Option("--tiny", help="Small sizes, to try it on a CPU.")] = False,
    stand_in: Annotated[str | None, Option(help="A benchmark in the place of CASIA.")] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="List the runs and their time.")] = False,
    out: Annotated[Path, Option(help="Where runs and tables go.")] = Path("runs/reproduce"),
    jobs: Jobs = None,
    per_card: PerCard = 1,
    ray: Ray = None,
    device: Device = "auto",
    data: Data = None,
) -> None:
    """Make a table of the paper, its numbers and ours side by side; goes on after a stop.

    Example: onepass reproduce table1 --only omniglot --seeds 3
    """
    use_data(data)
    from onepass.devices import pick_device
    from onepass.progress import tell
    from onepass.reproduce.output import write_table
    from onepass.reproduce.plan import dry_run as listed
    from onepass.reproduce.plan import make_plan
    from onepass.sweep import report_failures

    given = [*([f"steps={steps}"] if steps else []), *(settings or [])]
    plan = make_plan(what, only or [], seeds, given, tiny, stand_in)
    if dry_run:
        for line in listed(plan, out, pick_device(device), may_be_on_card=device != "cpu"):
            print(line, flush=True)
        return
    for reason in plan.absent.values():
        tell(f"left out: {reason}")
    if not plan.rows:
        raise ValueError(f"{what}: there is no data for any of its rows")
    failed = _run(plan.configs, out, device, jobs, per_card, ray)
    print(write_table(plan, out, device))
    kinds = [
        kind for kind in (".md", ".csv", ".json", ".png") if (out / (plan.name + kind)).exists()
    ]
    print(f"tables: {out / plan.name}{', '.join(kinds)}")
    report_failures(failed, len(plan.configs))


def ledger(
    runs: Annotated[
        list[Path] | None, Argument(help="Finished runs whose results are to be kept first.")
    ] = None,
    results: Annotated[Path, Option(help="The folder of result files.")] = Path("results"),
    out: Annotated[Path, Option(help="The page.")] = Path("docs/results.md"),
) -> None:
    """Make the page of results from the files of finished runs.

    Example: onepass ledger runs/quickstart --results results --out docs/results.md
    """
    from onepass.reproduce.kept import keep_run
    from onepass.reproduce.ledger import write_ledger

    for run in runs or []:
        keep_run(run, results)
    count = write_ledger(results, out)
    print(f"{out}: {count} result(s)")


def _run(configs, out: Path, device: str, jobs: int | None, per_card: int, ray: str | None):
    from onepass.devices import pick_device

    if ray is not None:
        from onepass.sweep_ray import run_all_on_ray

        if jobs is not None:
            raise ValueError(f"--jobs {jobs} is for this machine; Ray runs what its cluster holds")

        return run_all_on_ray(configs, out, ray, device, per_card)
    from onepass.sweep import run_all

    pick_device(device)
    return run_all(configs, out, device, jobs, per_card)
