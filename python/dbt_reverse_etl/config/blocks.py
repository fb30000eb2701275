"""One block of profiles.yml as plain data; a key that is written twice is an error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from dbt_reverse_etl.base.errors import mistake

MOST_NODES = 100_000  # of a block, each alias counted as what it stands for


def read_block(file: Path, name: str) -> Any:
    """The block as plain data, or None. A YAML error names the place alone: its text may quote a secret."""
    try:
        root = yaml.compose(file.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
        pairs = root.value if isinstance(root, yaml.MappingNode) else []
        found = [value for key, value in pairs if key.value == name]
        for node in found:
            _refuse_repeated_keys(file, node, (name,), iter(range(MOST_NODES)))
        if len(found) > 1:
            place = f"{file}:{found[1].start_mark.line + 1}"
            raise mistake(place, f"{name} a second time", "each key once", "join them")
        return yaml.SafeLoader("").construct_document(found[0]) if found else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else str(file)
        next_step = "correct the line; quote values with special signs"
        raise mistake(place, "text that is not YAML", "YAML", next_step) from None
    except RecursionError:
        raise mistake(str(file), "blocks too deep in each other", "plain data", "write it flatter") from None
    except (yaml.YAMLError, ValueError):
        next_step = "save the file as UTF-8, and quote dates"
        raise mistake(str(file), "content that is not YAML", "YAML in UTF-8", next_step) from None
    except OSError as error:
        raise mistake(str(file), f"{type(error).__name__}", "a readable file", "check its permissions") from None


def _refuse_repeated_keys(
    file: Path, node: yaml.Node, path: tuple[str, ...], left: Iterator[int], above: tuple[yaml.Node, ...] = ()
) -> None:
    """YAML keeps the last of two equal keys: a destination would vanish without a word.

    Args:
        left: yields once for each node that may follow: aliases of aliases stand for more than any memory holds.
    """
    if next(left, None) is None:
        raise mistake(f"{file}: {path[0]}", f"more than {MOST_NODES} values", "fewer", "write out what aliases repeat")
    if node in above:
        where = f"{file}:{node.start_mark.line + 1}"
        raise mistake(where, "an alias inside its own anchor", "plain data", "write it out")
    if isinstance(node, yaml.SequenceNode):
        for inner in node.value:
            _refuse_repeated_keys(file, inner, path, left, (*above, node))
    seen: set[str] = set()
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        name = str(key.value)
        if name in seen and key.tag != "tag:yaml.org,2002:merge":
            where = f"{file}:{key.start_mark.line + 1}: {'.'.join((*path, name))}"
            raise mistake(where, "the key a second time", "each key once", "remove or rename one of them")
        seen.add(name)
        _refuse_repeated_keys(file, value, (*path, name), left, (*above, node))
