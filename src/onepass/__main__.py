"""The command `onepass`, and `python -m onepass`: every mistake is answered with one line."""

import os
import sys
import time

import typer

from onepass.cli import app
from onepass.cli_data import data_app
from onepass.signals import Interrupted


def main() -> None:
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    if len(arguments) < len(sys.argv) - 1:
        sys.exit(app(args=arguments))
    try:
        _check_launched(arguments)
        code = app(args=arguments, standalone_mode=False)
        if code == 130:
            # typer makes an exit of an interrupt
            _fail("stopped")
    except typer.TyperException as error:
        message = getattr(error, "format_message", lambda: str(error))()
        if message.startswith("Usage:"):
            # nothing was asked for, so everything is shown
            print(message)
            sys.exit(0)
        code = _fail(message + _choices(message))
    except (ValueError, OSError, ArithmeticError, Interrupted) as error:
        code = _fail(str(error), getattr(error, "exit_code", 2))
    except (KeyboardInterrupt, typer.Abort):
        code = _fail("stopped", 130)
    except Exception as error:  # noqa: BLE001
        code = _fail(f"{type(error).__name__}: {error} (--debug shows where)", 1)
    sys.exit(code if isinstance(code, int) else 0)


def _check_launched(arguments: list[str]) -> None:
    processes = os.environ.get("WORLD_SIZE", "1")
    if processes != "1" and arguments[:1] != ["train"]:
        command = " ".join(["onepass", *arguments[:1]])
        raise ValueError(
            f"only train takes {processes} processes: start {command} without torchrun"
        )


def _fail(message: str, code: int = 2) -> int:
    if message:
        _wait_for_turn()
        print(f"onepass: {' '.join(message.split())}", file=sys.stderr)
    return code


def _wait_for_turn() -> None:
    """Processes that torchrun started fail alike until they are joined, and one word is enough."""
    if os.environ.get("LOCAL_RANK", "0") != "0":
        from onepass.ranks import count

        if count() == 1:
            # the first one speaks meanwhile, and torchrun ends the others
            time.sleep(5)


def _choices(message: str) -> str:
    """The commands there are, after one that is not."""
    if not message.startswith("No such command"):
        return ""

    def names(group: typer.Typer) -> list[str]:
        commands = group.registered_commands
        return [command.name or getattr(command.callback, "__name__", "") for command in commands]

    below = [f"data {name}" for name in names(data_app)]
    return f" There are: {', '.join(sorted([*names(app), *below]))}."


if __name__ == "__main__":
    main()
