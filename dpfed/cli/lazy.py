"""Groups of commands whose modules are imported only when a command is used, so that help appears at once."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping

import click
import typer
from typer.core import TyperGroup


def lazy_group(modules: Mapping[str, str]) -> type[TyperGroup]:
    """Returns a class of group whose commands are in modules of their own.

    Args:
        modules: Module of each command, by the command's name; its ``app`` is a `typer.Typer` with one command.
    """

    class Lazy(TyperGroup):
        def list_commands(self, ctx: click.Context) -> list[str]:
            return list(modules)

        def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
            if cmd_name not in modules:
                return None
            command = typer.main.get_command(importlib.import_module(modules[cmd_name]).app)
            command.name = cmd_name
            return command

    return Lazy


def group_in(module: str) -> type[TyperGroup]:
    """Returns a class of group whose commands are in one module; its ``app`` is a `typer.Typer` with several commands."""

    class Lazy(TyperGroup):
        @functools.cached_property
        def _group(self) -> TyperGroup:
            return typer.main.get_group(importlib.import_module(module).app)

        def list_commands(self, ctx: click.Context) -> list[str]:
            return self._group.list_commands(ctx)

        def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
            return self._group.get_command(ctx, cmd_name)

    return Lazy
