"""Commands of other packages join ours through the entry-point group `ling_prof.commands`. Strict: none is skipped.

An entry point names a function that takes a typer app and registers its commands on it. A group of a name that is
there already adds its commands to that group.
"""

from importlib import metadata

import typer
from typer.main import get_group

from ling_prof.errors import UserError

GROUP = "ling_prof.commands"
REMEDY = "mend or uninstall the package it comes from"


def join(app: typer.Typer) -> None:
    """Adds the commands of every installed entry point of the group to `app`.

    Raises UserError, naming the entry point, for one that does not load or brings a name that is taken.
    """
    for point in sorted(metadata.entry_points(group=GROUP), key=lambda point: (point.name, point.value)):
        brought = _brought(point)
        if clash := _clash(app, brought):
            raise UserError(f"{_called(point)} brings a command {clash!r} that exists already; {REMEDY}.")
        _add(app, brought)


def _called(point: metadata.EntryPoint) -> str:
    return f"the entry point {point.name} = {point.value} of {GROUP}"


def _brought(point: metadata.EntryPoint) -> typer.Typer:
    """The commands of one entry point, on an app of their own: a broken one leaves ours as it was."""
    app = typer.Typer()
    try:
        point.load()(app)
        if not _names(app):
            raise ValueError("it registers no command")
    except Exception as error:
        raise UserError(f"{_called(point)} is broken ({type(error).__name__}: {error}); {REMEDY}.") from error
    return app


def _names(app: typer.Typer) -> list[str]:
    """The names of its commands and groups; a name given twice stands there twice."""
    names: list[str] = []
    for kind in ("registered_commands", "registered_groups"):
        for entry in getattr(app, kind):
            alone = typer.Typer()  # one that holds both of a name would show it once
            setattr(alone, kind, [entry])
            names += get_group(alone).commands
    return names


def _groups(app: typer.Typer) -> dict[str, typer.Typer]:
    """Its groups by name."""
    found: dict[str, typer.Typer] = {}
    for entry in app.registered_groups:
        alone = typer.Typer()
        alone.registered_groups = [entry]
        found |= dict.fromkeys(_names(alone), entry.typer_instance or alone)
    return found


def _clash(app: typer.Typer, brought: typer.Typer) -> str:
    """The first name that would be there twice; empty when none is. Two groups of one name become one."""
    ours, theirs = _groups(app), _groups(brought)
    names = _names(app) + [name for name in _names(brought) if name not in ours.keys() & theirs.keys()]
    inside = (f"{name} {found}" for name in ours.keys() & theirs.keys() if (found := _clash(ours[name], theirs[name])))
    return next((name for i, name in enumerate(names) if name in names[:i]), next(inside, ""))


def _add(app: typer.Typer, brought: typer.Typer) -> None:
    ours, theirs = _groups(app), _groups(brought)
    shared = ours.keys() & theirs.keys()
    app.registered_commands += brought.registered_commands
    app.registered_groups += [e for e in brought.registered_groups if e.typer_instance not in map(theirs.get, shared)]
    for name in shared:
        _add(ours[name], theirs[name])
