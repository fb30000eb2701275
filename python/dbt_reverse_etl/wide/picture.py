"""The join tree of a wide table as SVG: boxes from the root at the left to the leaves, one line for each join."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from html import escape
from typing import Any

from dbt_reverse_etl.wide.trees import WideNode, WideTable, wide_tables

# Pixels: width of a letter, height of a line, padding of a box, space between boxes.
_LETTER, _LINE, _PAD, _GAP = 7, 17, 10, 14
_DASHES = {"left": "6 4", "inner": "none", "full": "none"}
_WIDTHS = {"left": 1.2, "inner": 1.2, "full": 3}

Place = tuple[float, float]


def pictures(manifest: Mapping[str, Any], models: Collection[str] | None = None) -> dict[str, str]:
    """SVG text by the name of the model, of all wide tables that are declared in the manifest, or of these models by their unique_id."""
    return {wide.model: as_svg(wide) for wide in wide_tables(manifest) if models is None or wide.unique_id in models}


def as_svg(wide: WideTable) -> str:
    """One `<svg>` element that draws in the colour of the text around it."""
    boxes = {node.name: _lines(node) for node in wide.nodes}
    box = max(len(line) for lines in boxes.values() for line in lines) * _LETTER + 2 * _PAD
    gap = max((len(_label(node)) for node in wide.nodes[1:]), default=0) * _LETTER + 40
    places, height = _places(wide, boxes, box + gap)
    width = max(x for x, _ in places.values()) + box
    parts = [*_joins(wide, boxes, places, box), *_boxes(wide, boxes, places, box)]
    title = f"Join tree of {wide.model}: {', '.join(node.name for node in wide.nodes)}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width + 4}" height="{height + 4}" '
        f'viewBox="-2 -2 {width + 4} {height + 4}" font-family="monospace" font-size="12" fill="currentColor">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )


def _lines(node: WideNode) -> list[str]:
    key = f"key {', '.join(node.key)}" if node.key else f"by {', '.join(own for own, _ in node.pairs)}"
    return [node.name, *([node.table] if node.table != node.name else []), key]


def _label(node: WideNode) -> str:
    on = ", ".join(theirs if own == theirs else f"{theirs} = {own}" for own, theirs in node.pairs)
    return f"{node.join} {on} {'n' if node.many else '1'}"


def _places(wide: WideTable, boxes: Mapping[str, list[str]], step: float) -> tuple[dict[str, Place], float]:
    """The upper left corner of each box: a leaf has a row of its own, a parent stands in the middle of its children."""
    places: dict[str, Place] = {}
    used = 0.0

    def put(node: WideNode, depth: int) -> float:
        nonlocal used
        middles = [put(child, depth + 1) for child in wide.children(node.name)]
        height = _height(boxes[node.name])
        top = (middles[0] + middles[-1]) / 2 - height / 2 if middles else used
        places[node.name] = (depth * step, max(top, 0.0))
        used = max(used, top + height + _GAP)
        return max(top, 0.0) + height / 2

    put(wide.nodes[0], 0)
    return places, used - _GAP


def _height(lines: list[str]) -> float:
    return len(lines) * _LINE + _PAD


def _boxes(wide: WideTable, boxes: Mapping[str, list[str]], places: Mapping[str, Place], width: float) -> Iterator[str]:
    for node in wide.nodes:
        (x, y), lines = places[node.name], boxes[node.name]
        yield f'<rect x="{x}" y="{y}" width="{width}" height="{_height(lines)}" rx="4" fill="none" stroke="currentColor"/>'
        for number, line in enumerate(lines):
            weight = ' font-weight="bold"' if number == 0 else ""
            yield f'<text x="{x + _PAD}" y="{y + (number + 1) * _LINE}"{weight}>{escape(line)}</text>'


def _joins(wide: WideTable, boxes: Mapping[str, list[str]], places: Mapping[str, Place], width: float) -> Iterator[str]:
    """Thick for a full join, dashed for a left one; the label says kind, columns, and how many rows meet one."""
    for node in wide.nodes[1:]:
        parent = str(node.parent)
        x1, y1 = places[parent][0] + width, places[parent][1] + _height(boxes[parent]) / 2
        x2, y2 = places[node.name][0], places[node.name][1] + _height(boxes[node.name]) / 2
        bend = x1 + 20
        yield (
            f'<path d="M{x1} {y1}L{bend} {y2}L{x2} {y2}" fill="none" stroke="currentColor" '
            f'stroke-width="{_WIDTHS[node.join]}" stroke-dasharray="{_DASHES[node.join]}"/>'
            f'<text x="{bend + 6}" y="{y2 - 5}">{escape(_label(node))}</text>'
        )
