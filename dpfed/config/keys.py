"""Lists every key of a configuration, with its allowed values, its default and its meaning, as the schema declares them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tomli_w

from dpfed import discovery
from dpfed.config import Config
from dpfed.config.configuration import deciding
from dpfed.errors import UserError, nearest
from dpfed.privacy.method import METHODS, method_named
from dpfed.privacy.plan_checks import CLIP_NORMS, STABILITIES
from dpfed.schema.section import Section
from dpfed.schema.wording import either

# Limits that are checked where the value is used. Tests compare them with that code; reading them there would import torch.
_CHECKED_ELSEWHERE: dict[str, dict[str, Any]] = {
    "data.source": {"enum": ["shapes", "scenes", "procedural", "store", *discovery.shipped("importers")]},
    "bounding.method": {"enum": list(METHODS)},
    "bounding.group_size": {"minimum": 1},
    "bounding.clip_norm": {"minimum": CLIP_NORMS[0], "maximum": CLIP_NORMS[1]},
    "bounding.stability": {"minimum": STABILITIES[0], "maximum": STABILITIES[1]},
    "bounding.max_group_size": {"minimum": 2},
    "privacy.epsilon": {"minimum": 1e-3},
    "privacy.noise_multiplier": {"minimum": 0.1},
    "privacy.delta": {"exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "privacy.batch": {"minimum": 1},
    "privacy.steps": {"minimum": 1},
}
_WORDS = {"boolean": "true or false", "integer": "whole number", "number": "number", "string": "text", "object": "table"}


@dataclass(frozen=True)
class Key:
    """A key of the configuration.

    Attributes:
        name: Dotted name, such as ``privacy.epsilon``.
        section: Section, such as ``privacy``; empty: the key belongs to no section and stands at the top of the file.
        allowed: Description of the allowed values, such as ``whole number, 1 or more``.
        choices: Allowed values, or, if the value is a list, the allowed values of its members; empty: they cannot be listed.
        default: Value if the key is left out; ``None``: no value, or the value that the meaning states.
        meaning: Explanation of the key.
        depends_on: Keys that decide whether this key has an effect; giving it where it has none is an error.
    """

    name: str
    section: str
    allowed: str
    choices: tuple[str, ...]
    default: Any
    meaning: str
    depends_on: tuple[str, ...]

    @property
    def default_in_toml(self) -> str:
        """The default as it is written in TOML; empty: no default."""
        if self.default is None:
            return ""
        if isinstance(self.default, dict | list):
            return json.dumps(self.default)  # lists of texts, and an empty table, are the same in TOML
        return tomli_w.dumps({"x": self.default}).removeprefix("x = ").strip()


def all_keys() -> list[Key]:
    """Returns every key, in the order of the schema."""
    top = Config.model_json_schema()["properties"]
    keys = []
    for name, field in Config.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            keys += [_key(f"{name}.{key}", name, schema) for key, schema in kind.model_json_schema()["properties"].items()]
        else:
            keys.append(_key(name, "", top[name]))
    behind = [key.name for key in keys].index("bounding.options") + 1
    return [*keys[:behind], *_method_keys(), *keys[behind:]]


def _method_keys() -> Iterator[Key]:
    """Yields the keys ``bounding.options.NAME``, the options of single methods.

    If an option's default depends on the loss, the key has no default, and its meaning lists the defaults.
    """
    schemas: dict[str, dict[tuple[str, str], dict[str, Any]]] = {}
    for method in METHODS:
        options = method_named(method).options
        for loss, kind in (options if isinstance(options, Mapping) else {"": options}).items():
            for name, schema in kind.model_json_schema()["properties"].items() if kind.model_fields else ():
                schemas.setdefault(f"bounding.options.{name}", {})[method, loss] = schema
    for name, of in schemas.items():
        key = _key(name, "bounding", next(iter(of.values())))
        defaults = {loss: schema["default"] for (_, loss), schema in of.items()}
        meaning = f"{' and '.join(dict.fromkeys(method for method, _ in of))}: {key.meaning}"
        if len(set(defaults.values())) > 1:
            meaning += f"; default {', '.join(f'{default} ({loss})' for loss, default in defaults.items())}"
            key = dataclasses.replace(key, default=None)
        decided = ("bounding.method", "objective.name") if len({loss for _, loss in of}) > 1 else ("bounding.method",)
        yield dataclasses.replace(key, meaning=meaning, depends_on=decided)


def matching(words: Iterable[str]) -> list[Key]:
    """Returns the keys that match words.

    If every word is the name of a section or of a key, the named keys and all keys of the named sections match. Otherwise, a
    key matches if its name, allowed values and meaning together contain every word.

    Args:
        words: Words, in upper or lower case; empty: all keys match.

    Raises:
        UserError: If no key matches.
    """
    wanted, keys = [word.lower() for word in words], all_keys()
    names = {key.name for key in keys} | {key.section for key in keys} - {""}
    if wanted and names.issuperset(bare := [word.strip("[]") for word in wanted]):
        return [key for key in keys if key.name in bare or key.section in bare]
    matches = [key for key in keys if all(word in f"{key.name} {key.allowed} {key.meaning}".lower() for word in wanted)]
    if not matches:
        raise UserError(
            f"no key has {' and '.join(map(repr, wanted))} in its name, allowed values or meaning; "
            f"{nearest(wanted[0], names)} [setting-none]"
        )
    return matches


def _key(name: str, section: str, schema: dict[str, Any]) -> Key:
    kinds = [kind for kind in schema.get("anyOf", [schema]) if kind.get("type") != "null"]
    whole = {**(kinds[0] if len(kinds) == 1 else schema), **_CHECKED_ELSEWHERE.get(name, {})}
    choices = tuple(whole.get("enum") or whole.get("items", {}).get("enum") or ())
    meaning = schema.get("description", "")
    return Key(name, section, _allowed(whole), choices, schema.get("default"), meaning, deciding(name))


def _allowed(schema: dict[str, Any]) -> str:
    if "enum" in schema or "const" in schema:
        return either(schema.get("enum") or [schema["const"]])
    if "prefixItems" in schema:
        return f"[{', '.join(_allowed(item) for item in schema['prefixItems'])}]"
    if schema["type"] == "array":
        if "enum" not in schema["items"]:
            return f"list of {'one or more ' if schema.get('minItems') else ''}{_allowed(schema['items'])}s"
        return f"list of {'at least one of ' if schema.get('minItems') else ''}{either(schema['items']['enum'], 'and')}"
    return _WORDS[schema["type"]] + _range(schema)


def _range(schema: dict[str, Any]) -> str:
    low, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    high, below = schema.get("maximum"), schema.get("exclusiveMaximum")
    if low is not None and high is not None:
        return f", {_bound(low)} to {_bound(high)}"
    parts = []
    if low is not None:
        parts.append(f"{_bound(low)} or more")
    if above is not None:
        parts.append(f"above {_bound(above)}")
    if high is not None:
        parts.append(f"{_bound(high)} or less")
    if below is not None:
        parts.append(f"below {_bound(below)}")
    return "".join(f", {part}" for part in parts)


def _bound(value: float) -> str:
    return f"{value:,.0f}" if value >= 1e6 else f"{value:g}"
