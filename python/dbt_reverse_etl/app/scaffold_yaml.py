"""The YAML files of a user's project as text: read whatever they hold, and given one more entry with their comments kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml


def parsed(text: str) -> Any:
    """Plain data; None for text that is not YAML, which may hold secrets and is never quoted."""
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):  # ValueError: a date that no calendar has
        return None


def mapping(text: str) -> Mapping[Any, Any]:
    """The same of a text that should be a mapping; empty for any other."""
    read = parsed(text)
    return read if isinstance(read, Mapping) else {}


def raw(file: Path) -> str:
    """The text with its own line ends; empty where there is no file."""
    return file.read_bytes().decode("utf-8", errors="replace") if file.is_file() else ""


def mappings(read: Mapping[Any, Any], key: str) -> list[Mapping[str, Any]]:
    """Those in a list of a properties file, whose other contents dbt itself refuses."""
    listed = read.get(key)
    return [one for one in listed if isinstance(one, Mapping)] if isinstance(listed, list) else []


def packages_of(text: str) -> list[Any]:
    found = mapping(text).get("packages")
    return list(found) if isinstance(found, list) else []


def with_entry(text: str, line: str) -> str | None:
    """The text with one more package, comments kept; None where the list is written in another way than as lines."""
    end = "\r\n" if "\r\n" in text else "\n"
    if not parsed(text):
        gap = "" if not text or text.endswith("\n") else end
        return f"{text}{gap}packages:{end}  {line}{end}"
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    for key, value in root.value if isinstance(root, yaml.MappingNode) else ():
        if key.value != "packages":
            continue
        if not value.value or value.tag == "tag:yaml.org,2002:null":
            return f"{text[: value.start_mark.index].rstrip(' ')}{end}  {line}{text[value.end_mark.index :] or end}"
        if isinstance(value, yaml.SequenceNode) and not value.flow_style:
            lines = text.splitlines(keepends=True)
            lines.insert(key.start_mark.line + 1, f"{' ' * value.start_mark.column}{line}{end}")
            return "".join(lines)
    return None
