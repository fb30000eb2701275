"""What of an SQL condition is wrong whatever the columns are. Pure: the session of Spark says the rest."""

from __future__ import annotations

import re

LONGEST, DEEPEST = 20_000, 100

_TOKEN = re.compile(
    r"""
      (?P<quoted> \b[rR](?:'[^']*'|"[^"]*") | '(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" | `[^`]*` )
    | (?P<comment> -- | /\* )
    | (?P<open> \( )
    | (?P<close> \) )
    | (?P<lone> ['"`] )
    | (?P<end> ; )
    | (?P<control> [\x00-\x08\x0b\x0c\x0e-\x1f\x7f] )
    """,
    re.VERBOSE | re.DOTALL,
)
_FOUND = {
    "comment": "a comment",
    "lone": "a quote that does not end",
    "end": "a semicolon",
    "control": "a control character",
}
_SUB_QUERY = re.compile(r"\(\s*select\b", re.IGNORECASE)
_CHANGING = re.compile(
    r"\b(rand|randn|random|randstr|uniform|uuid|shuffle|monotonically_increasing_id|spark_partition_id|now|localtimestamp|user"
    r"|session_user|current_(?:date|time|timestamp|timezone|user|catalog|database|schema|path))\s*\(",
    re.IGNORECASE,
)


def unfit(text: str) -> str:
    """Why a text is no deterministic condition over the columns of a row; an empty text: nothing is known against it."""
    if len(text) > LONGEST:
        return f"{len(text)} characters"
    depth = 0
    for token in _TOKEN.finditer(text):
        kind = token.lastgroup or ""
        depth += (kind == "open") - (kind == "close")
        if kind in _FOUND:
            return _FOUND[kind]
        if depth < 0 or depth > DEEPEST:
            return "a parenthesis that closes nothing" if depth < 0 else f"parentheses more than {DEEPEST} deep"
    if depth:
        return "a parenthesis that does not close"
    bare = _TOKEN.sub(lambda token: "''" if token["quoted"] else token[0], text)
    if _SUB_QUERY.search(bare):
        return "a sub-query"
    changing = _CHANGING.search(bare)
    return f"{changing[1].lower()}(), which changes by itself" if changing else ""
