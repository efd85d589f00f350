"""YAML files: a mapping at the top, and what is wrong with one is told in a line."""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from ppdbench.errors import ConfigError
from ppdbench.files.keys import Keys, kind

HALVES = re.compile("[\ud800-\udfff]")  # escapes in quotes can name them, UTF-8 cannot
OWN = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times faster where it is built in


class _Loader(yaml.SafeLoader):
    """Plain YAML, but a key given twice is an error instead of a silent overwrite."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable) or key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        text = super().construct_scalar(node)
        if isinstance(text, str) and HALVES.search(text):
            raise yaml.constructor.ConstructorError(
                None, None, "half a surrogate pair is no text", node.start_mark
            )
        return text


def read_yaml(path: Path, what: str = "task") -> Keys:
    """The top-level mapping of a task file, or of another kind of file."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
        content = yaml.load(text, Loader=_Loader)
    except FileNotFoundError:
        hint = "give a path or a task name" if what == "task" else "give a path"
        raise ConfigError(f"{what} file {path} does not exist; {hint}") from None
    except OSError as error:
        raise ConfigError(f"{what} file {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 (byte {error.start}); save it as UTF-8") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}{_yaml_trouble(error)}") from error
    except (RecursionError, ValueError) as error:  # nested too deep; an impossible date
        raise ConfigError(f"{path}: not YAML this program can read: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: a {what} file is a mapping (key: value), not {kind(content)}")
    return Keys(content, path.name)


def read_own(path: Path) -> Any:
    """The content of a file that came with this package, so that nothing can be wrong with it."""
    return yaml.load(path.read_text("utf-8"), Loader=OWN)


def _yaml_trouble(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    line = f", line {mark.line + 1}" if mark is not None else ""
    return f"{line}: not valid YAML: {problem}"
