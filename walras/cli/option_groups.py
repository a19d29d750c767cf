"""Options that several commands take together: a command names one parameter, and its users see the options of a group.

A group is a function whose parameters are options, and which makes one value of them. A command that has a parameter of
the group's value takes the group's options in its place:

    @commands.command("describe")
    @options_of(reading=trace_reading)
    def describe_command(file: FileArgument, reading: "ReadOptions") -> None: ...

A group may take another group's options in the same way.
"""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

R = TypeVar("R")


def options_of(**groups: Callable[..., Any]) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Have a command take, in place of each parameter named here, the options of that group."""

    def decorated(command: Callable[..., R]) -> Callable[..., R]:
        taken = {name: list(inspect.signature(group).parameters) for name, group in groups.items()}

        def run(**given: Any) -> R:
            made = {name: groups[name](**{each: given.pop(each) for each in taken[name]}) for name in groups}
            return command(**given, **made)

        parameters = [parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in _in_place(command, groups)]
        run.__name__, run.__doc__, run.__module__ = command.__name__, command.__doc__, command.__module__
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        # What names the groups' values is not loaded yet: the command line reads the options' own types.
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorated


def _in_place(command: Callable[..., Any], groups: dict[str, Callable[..., Any]]) -> list[inspect.Parameter]:
    """The parameters of a command, those of its groups spread out. Raises TypeError where a name stands twice."""
    own = inspect.signature(command).parameters
    if missing := sorted(set(groups) - set(own)):
        raise TypeError(f"{command.__name__} has no parameter {', '.join(missing)}")
    found: list[inspect.Parameter] = []
    for name, parameter in own.items():
        found += inspect.signature(groups[name]).parameters.values() if name in groups else [parameter]
    names = [parameter.name for parameter in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise TypeError(f"{command.__name__} takes {', '.join(twice)} twice")
    return found
