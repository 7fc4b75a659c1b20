"""Conditions under which keys of a configuration have an effect. A key declares which values of other keys it needs:

    momentum: Annotated[float, only("optimizer.name", "sgd", "lars")] = Field(0.9)

The configuration declares the conditions between keys of different sections, each as an `Across`. A key that is given and has
no effect is an error: a user who sets ``data.path`` and forgets ``data.source`` would otherwise train on generated shapes
without noticing. A key counts as given if its value is not the default, so that a file that spells out every default can be
read again. An interval longer than the run, or a limit that is never reached, counts as having an effect.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic.fields import FieldInfo

from dpfed.errors import UserError
from dpfed.schema.section import Section
from dpfed.schema.wording import either, shown


@dataclass(frozen=True, eq=False)
class When:
    """A condition under which keys have an effect. One sentence of the error message names all keys with the same condition.

    Attributes:
        because: Keys whose values decide, separated by spaces.
        holds: Predicate on the section that contains the keys; in an `Across`, on the whole configuration.
        remedy: Advice that makes the condition hold, as text or as a function that returns it.
    """

    because: str
    holds: Callable[[Any], bool]
    remedy: str | Callable[[], str]

    @property
    def advice(self) -> str:
        """The advice that makes the condition hold, as text."""
        return self.remedy if isinstance(self.remedy, str) else self.remedy()


@functools.cache
def only(key: str, *values: str, why: str = "") -> When:
    """Returns the condition that another key of the same section has one of the given values.

    Args:
        key: Name of the other key, such as ``optimizer.name``.
        values: Values of that key under which the condition holds.
        why: Reason with its punctuation, such as ``"the tower is frozen; "``, placed before the remedy in the error.
    """
    name = key.rpartition(".")[2]
    return When(key, lambda section: getattr(section, name) in values, f"{why}set {key} = {either(values)}")


class Across(NamedTuple):
    """A condition between sections.

    Attributes:
        keys: Keys that have an effect only if the condition holds, separated by spaces; ``public.*``: all keys of a section.
        when: The condition, on the whole configuration.
    """

    keys: str
    when: When

    def named(self, config: type[Section]) -> Iterator[str]:
        """Yields the dotted name of each key; ``section.*`` is expanded."""
        for key in self.keys.split():
            section, _, name = key.partition(".")
            yield from (f"{section}.{field}" for field in fields_of(config, section)) if name == "*" else (key,)


def fields_of(config: type[Section], section: str) -> dict[str, FieldInfo]:
    """Returns the fields of a configuration's section by key; empty if the name is a key and not a section."""
    kind = config.model_fields[section].annotation
    return kind.model_fields if isinstance(kind, type) and issubclass(kind, Section) else {}


class Conditions:
    """All conditions of a configuration.

    Args:
        config: Class of the configuration. Its sections declare the conditions within a section.
        across: Conditions between sections. They are checked first.

    Raises:
        ValueError: If a condition names a key that the configuration does not have.
    """

    def __init__(self, config: type[Section], *across: Across) -> None:
        between = [(key, rule.when) for rule in across for key in rule.named(config)]
        self._of: dict[str, list[tuple[str, When]]] = {}  # key -> (section to check, condition); "": the whole config
        for section in config.model_fields:
            for name, field in fields_of(config, section).items():
                key = f"{section}.{name}"
                first = [("", when) for other, when in between if other == key]
                self._of[key] = [*first, *((section, when) for when in field.metadata if isinstance(when, When))]
        if unknown := {key for key, _ in between} - self._of.keys():
            raise ValueError(f"no such keys: {sorted(unknown)}")

    def deciding(self, key: str) -> tuple[str, ...]:
        """Returns the other keys that decide whether a key has an effect; empty: the key always has an effect."""
        keys = [other for _, when in self._of.get(key, ()) for other in when.because.split()]
        return tuple(other for other in dict.fromkeys(keys) if other != key)

    def without_effect(self, config: Section) -> dict[str, When]:
        """Returns all keys without an effect in a configuration, given or not, each with the first of its failed conditions."""
        failed = {
            key: [when for section, when in conditions if not when.holds(getattr(config, section) if section else config)]
            for key, conditions in self._of.items()
        }
        return {key: broken[0] for key, broken in failed.items() if broken}

    def refuse(self, config: Section, origin: str = "config") -> None:
        """Refuses keys that are given and have no effect.

        Args:
            config: Configuration, as the user wrote it or resolved.
            origin: Origin of the configuration, such as its file, for the message.

        Raises:
            UserError: If there are such keys; the message names them, the reason, and the remedy.
        """
        idle = {key: when for key, when in self.without_effect(config).items() if is_given(config, key)}
        if idle:
            conditions = dict.fromkeys(idle.values())
            said = (_sentence(config, when, [key for key in idle if idle[key] is when]) for when in conditions)
            raise idle_error(origin, "; ".join(said), list(idle))

    def effective(self, config: Section) -> dict[str, Section]:
        """Returns the sections that have keys without an effect, by name, with these keys reset to their defaults."""
        changes: dict[str, dict[str, Any]] = {}
        for key in self.without_effect(config):
            section, name = key.split(".")
            changes.setdefault(section, {})[name] = _default(config, key)
        return {section: getattr(config, section).model_copy(update=values) for section, values in changes.items()}


def idle_error(origin: str, said: str, keys: list[str]) -> UserError:
    """Returns the error for keys that are given and have no effect.

    Args:
        origin: Origin of the configuration, such as its file.
        said: Names of the keys, reason and remedy, as a sentence without its full stop.
        keys: Dotted names of the keys.
    """
    options = " ".join(f"--set {key}=" for key in keys)
    return UserError(
        f"{origin}: {said}. [setting-idle]",
        command=f"To leave {'them' if len(keys) > 1 else 'it'} out on the command line: {options}",
    )


def is_given(config: Section, key: str) -> bool:
    """Returns whether a key's value differs from its default."""
    return bool(_value(config, key) != _default(config, key))


def _value(config: Section, key: str) -> Any:
    return functools.reduce(getattr, key.split("."), config)


def _default(config: Section, key: str) -> Any:
    section, _, name = key.rpartition(".")
    return type(getattr(config, section) if section else config).model_fields[name].default


def _sentence(config: Section, when: When, keys: list[str]) -> str:
    def value(key: str) -> str:
        return shown(_value(config, key)) + ("" if is_given(config, key) else " (the default)")

    why = " and ".join(f"{key} = {value(key)}" for key in when.because.split())
    return f"{listed(keys)} no effect with {why}: {when.advice}, or leave {_again(keys)} out"


def _again(keys: list[str]) -> str:
    """Names keys a second time, after advice that names other keys: a pronoun could mean these."""
    return " and ".join(map(repr, keys)) if len(keys) < 3 else f"the {len(keys)} keys without effect"


def listed(keys: list[str]) -> str:
    """Returns keys and verb as the beginning of a sentence, such as ``'a' and 'b' have``."""
    return f"{' and '.join(map(repr, keys))} {'has' if len(keys) == 1 else 'have'}"


def them(keys: list[str]) -> str:
    """Returns the pronoun for one key (it) or several keys (them)."""
    return "it" if len(keys) == 1 else "them"
