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
_BY_ITSELF = re.compile(
    r"\b(rand|randn|random|randstr|uniform|uuid|shuffle|monotonically_increasing_id|spark_partition_id)\s*\(",
    re.IGNORECASE,
)
# Texts that Spark takes for the time wherever they become a date, with a zone or without.
_SPECIAL_DATE = re.compile(
    r"""r?(['"])\s*(now|today|tomorrow|yesterday)(\s*Z|\s+[A-Z]{1,4}|\s*[A-Z]\w*/\w+|\s*(UTC|GMT|UT)?[+-][\d:]+)?\s*\1""",
    re.IGNORECASE,
)
_OF_TIME = re.compile(r"(date|time)\w*\s*\(|\b(date|timestamp\w*)\s*''|cast\s*\(|::", re.IGNORECASE)
OF_SESSION = (
    r"\b(now|localtimestamp|user|session_user|current_(date|time|timestamp|timezone|user|catalog|database|schema|path))"
)
_OF_SESSION = re.compile(OF_SESSION + r"\s*\(", re.IGNORECASE)


def unfit(text: str) -> str:
    """Why a text is no deterministic condition over the columns of a row; an empty text: nothing is known against it."""
    return f"{len(text)} characters" if len(text) > LONGEST else _misplaced(text) or _not_of_a_row(text)


def _misplaced(text: str) -> str:
    """The first sign that ends the condition, or that lets the text around it be mistaken for a part of it."""
    depth = 0
    for token in _TOKEN.finditer(text):
        kind = token.lastgroup or ""
        depth += (kind == "open") - (kind == "close")
        if kind in _FOUND:
            return _FOUND[kind]
        if depth < 0 or depth > DEEPEST:
            return "a parenthesis that closes nothing" if depth < 0 else f"parentheses more than {DEEPEST} deep"
    return "a parenthesis that does not close" if depth else ""


def _not_of_a_row(text: str) -> str:
    bare = without_texts(text)
    if says_day(text) and _OF_TIME.search(bare):
        return "an expression that depends on the time or on the session"
    if _SUB_QUERY.search(bare):
        return "a sub-query"
    if _BY_ITSELF.search(bare):
        return "an expression that changes by itself"
    return "an expression that depends on the time or on the session" if calls_session(bare) else ""


def says_day(text: str) -> bool:
    """Whether the condition has a text that is the time where it becomes a date; beside a text it is only a word."""
    return any(_SPECIAL_DATE.fullmatch(token["quoted"] or "") for token in _TOKEN.finditer(text))


def without_texts(text: str) -> str:
    """The condition with each quoted text empty."""
    return _TOKEN.sub(lambda token: "''" if token["quoted"] else token[0], text)


def quoted_texts(text: str) -> list[str]:
    """The quoted texts, without their quotes and without what a backslash escapes, which a plan shows otherwise."""
    found: list[str] = []
    for quoted in filter(None, (token["quoted"] for token in _TOKEN.finditer(text))):
        bare = quoted.lstrip("rR")[1:-1]
        found += [bare] if quoted[0] in "rR" else re.split(r"\\.", bare, flags=re.DOTALL)
    return found


def calls_session(bare: str) -> bool:
    """Whether a text without quoted parts calls a function of the time or of the session."""
    return bool(_OF_SESSION.search(bare))
