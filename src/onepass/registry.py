"""Names for components. A file in a component package registers itself by being there."""

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

Positive = Annotated[int, Field(ge=1, strict=True)]
Natural = Annotated[int, Field(ge=0, strict=True)]
Share = Annotated[float, Field(ge=0, lt=1)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PositiveReal = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Registry(Mapping[str, Callable]):
    """Builders by name, found by importing every module of one package.

    `NAME:TEXT` gives the builder of that name the text as its first option, if that has no
    default; wherever a name is taken, `MODULE:CLASS` names anyone's own.
    """

    def __init__(self, kind: str, base: str, given: Sequence[str]):
        # the first arguments are given by the caller; the others are options
        self.kind, self.base, self.given = kind, base, given
        self.package = f"onepass.{kind}s"
        self._builders: dict[str, Callable] = {}
        self._complete = False  # whether all modules of the package were asked

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
        missing = [
            key
            for key, parameter in takes.items()
            if parameter.default is inspect.Parameter.empty and key not in options
        ]
        if missing:
            way = f"{name}:{missing[0].upper()} or {self.kind}.{missing[0]}=..."
            raise ValueError(f"the {self.kind} {name!r} needs {', '.join(missing)}: say {way}")
        built, base = builder(*args, **options), load_object(self.base)
        if not isinstance(built, base):
            raise ValueError(
                f"{name!r} makes a {type(built).__name__}, and a {self.kind} is a {base.__name__}"
            )
        return built

    def options(self, name: str) -> dict[str, inspect.Parameter]:
        """What the builder takes beside what it is always given, and what its name says."""
        takes = self._parameters(name)[len(self.given) :]
        return {key: parameter for key, parameter in takes if key not in self.said(name)}

    def said(self, name: str) -> dict[str, Any]:
        """What the name itself decides: the mixer of a `linear_transformer`."""
        return getattr(self[name], "keywords", {})

    def given_types(self, name: str) -> list[Any]:
        """The annotations of what it is always given; None where there is none."""
        found = [parameter.annotation for _, parameter in self._parameters(name)]
        return [
            None if annotation is inspect.Parameter.empty else annotation
            for annotation in found[: len(self.given)]
        ]

    def _parameters(self, name: str) -> list[tuple[str, inspect.Parameter]]:
        builder = self[name]
        if not callable(builder):
            raise ValueError(f"{name!r} is no class or function that makes a {self.kind}")
        parameters = list(inspect.signature(builder, eval_str=True).parameters.items())
        if len(parameters) < len(self.given):
            raise ValueError(
                f"{name!r} takes {len(parameters)} argument(s), and a {self.kind} is given "
                f"{', '.join(self.given)}"
            )
        return parameters

    def _discover(self):
        if self._complete:
            return
        package = importlib.import_module(self.package)
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{self.package}.{module.name}")
        self._complete = True

    def __getitem__(self, name: str) -> Any:
        head, colon, text = name.partition(":")
        self._discover()
        if colon and head in self._builders:
            return self._with_text(head, text)
        if colon:
            return load_object(name)
        if name not in self._builders:
            choices = ", ".join(sorted(self._builders))
            raise ValueError(
                f"no {self.kind} {name!r}; there are: {choices}, or MODULE:CLASS for your own"
            )
        return self._builders[name]

    def _with_text(self, head: str, text: str) -> Callable:
        first = next(iter(self.options(head).items()), None)
        if first is None or first[1].default is not inspect.Parameter.empty:
            raise ValueError(f"the {self.kind} {head!r} takes nothing after a colon")
        if not text:
            raise ValueError(f"{head}: needs its {first[0]}, such as {head}:{first[0].upper()}")
        return partial(self._builders[head], **{first[0]: text})

    def __contains__(self, name: object) -> bool:
        return name in list(self)

    def __iter__(self) -> Iterator[str]:
        self._discover()
        return iter(sorted(self._builders))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def load_object(name: str) -> Any:
    """What `MODULE:NAME` names; the current folder counts as a place for modules."""
    module_name, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in [*module_name.split("."), attribute]):
        raise ValueError(f"{name!r} is not of the form MODULE:CLASS, such as mymodule:MyMixer")
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


BENCHMARKS = Registry("benchmark", "onepass.benchmarks.base:Benchmark", [])
LEARNERS = Registry("learner", "onepass.learner:Learner", ["x_shape", "target"])
MIXERS = Registry("mixer", "onepass.mixers.base:Mixer", ["width"])
