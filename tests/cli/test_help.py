"""`--help`: what people need first stands first, everything stands once, under a heading."""

from __future__ import annotations

import click
import pytest

from ppdbench.cli.help import AT_MOST, FIRST, HEADINGS, Command
from ppdbench.cli.main import COMMANDS, cli

MANY = 15  # options from which a plain list is too long to read


def leaves() -> dict[str, click.Command]:
    """Every command that does something, by what is typed for it."""
    context = click.Context(cli)
    found = {}
    for name in COMMANDS:
        command = cli.get_command(context, name)
        if isinstance(command, click.Group):
            for sub in command.list_commands(context):
                found[f"{name} {sub}"] = command.get_command(context, sub)
        elif command is not None:
            found[name] = command
    return found


ALL = leaves()


@pytest.mark.parametrize("name", ALL)
def test_many_options_stand_under_headings_the_most_needed_first(name: str) -> None:
    command = ALL[name]
    options = [p for p in command.params if isinstance(p, click.Option)]
    if len(options) < MANY:
        return
    assert isinstance(command, Command), f"{name} has {len(options)} options in one list"
    context = click.Context(command, info_name=name)
    sections = dict(command.sections(context))
    assert 5 <= len(sections[FIRST]) <= AT_MOST
    assert set(sections) & set(HEADINGS)
    shown = [option for section in sections.values() for option in section]
    assert len(shown) == len(set(map(id, shown))) == len(options) + 1  # and --help itself
    text = command.get_help(context)
    for option in options:
        assert option.opts[0] in text
    assert [text.index(f"{heading}:") for heading in sections] == sorted(
        text.index(f"{heading}:") for heading in sections
    )


def test_the_defaults_of_data_are_stated_wherever_data_can_be_chosen() -> None:
    chosen = {
        name: option
        for name, command in ALL.items()
        for option in command.params
        if isinstance(option, click.Option) and "--data" in option.opts
    }
    assert len(chosen) >= 6
    for name, option in chosen.items():
        text = f"{option.help} {'default' if option.show_default else ''}"
        assert "builtin" in text and ("embedded" in text or "default" in text), name
