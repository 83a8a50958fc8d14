"""Names for components. A file in a component package registers itself by being there."""

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError


class Registry(Mapping[str, Callable]):
    """Builders by name, found by importing every module of one package.

    Wherever a name is taken, `MODULE:CLASS` names anyone's own.
    """

    def __init__(self, kind: str, given: int):
        self.kind, self.given = kind, given  # the first `given` arguments are not options
        self.package = f"onepass.{kind}s"
        self._builders: dict[str, Callable] = {}

    def add(self, name: str) -> Callable:
        def register(builder):
            if name in self._builders:
                raise ValueError(f"{self.package}: the name {name!r} is taken")
            self._builders[name] = builder
            return builder

        return register

    def build(self, name: str, *args: Any, **options: Any) -> Any:
        """Call the builder; options are held to its signature and converted to its types."""
        builder, takes = self[name], self.options(name)
        for key, value in options.items():
            if key not in takes:
                choices = ", ".join(takes) or "no options"
                raise ValueError(f"the {self.kind} {name!r} takes no {key!r}; it takes: {choices}")
            options[key] = _converted(f"{self.kind}.{key}", value, takes[key].annotation)
        return builder(*args, **options)

    def options(self, name: str) -> dict[str, inspect.Parameter]:
        """What the builder takes beside what it is always given."""
        parameters = inspect.signature(self[name]).parameters
        return dict(list(parameters.items())[self.given :])

    def _discover(self):
        package = importlib.import_module(self.package)
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{self.package}.{module.name}")

    def __getitem__(self, name: str) -> Callable:
        if ":" in name:
            return load_object(name)
        self._discover()
        if name not in self._builders:
            choices = ", ".join(sorted(self._builders))
            raise ValueError(
                f"no {self.kind} {name!r}; there are: {choices}, or MODULE:CLASS for your own"
            )
        return self._builders[name]

    def __iter__(self) -> Iterator[str]:
        self._discover()
        return iter(sorted(self._builders))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def load_object(name: str) -> Any:
    """What `MODULE:NAME` names; the current folder counts as a place for modules."""
    module_name, _, attribute = name.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name.partition(".")[0] and error.name != module_name:
            raise
        raise ValueError(
            f"{name!r}: there is no module {module_name!r} here or among the installed ones"
        ) from error
    if not hasattr(module, attribute):
        public = ", ".join(
            key
            for key, value in vars(module).items()
            if callable(value) and getattr(value, "__module__", "") == module.__name__
        )
        raise ValueError(f"{module_name} has no {attribute!r}; it has: {public or 'nothing'}")
    return getattr(module, attribute)


def _converted(key: str, value: Any, annotation: Any) -> Any:
    if annotation is inspect.Parameter.empty:
        return value
    try:
        return TypeAdapter(annotation).validate_python(value)
    except ValidationError as error:
        raise ValueError(f"{key}={value}: {error.errors()[0]['msg']}") from error


BENCHMARKS = Registry("benchmark", given=0)
LEARNERS = Registry("learner", given=2)
MIXERS = Registry("mixer", given=1)
