"""The time zone of the session, where a filter of a sync depends on it: in another one it would choose other rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from pyspark.sql import SparkSession

from dbt_reverse_etl.base.errors import mistake

SETTING = "spark.sql.session.timeZone"
_UTC = frozenset({"Etc/UTC", "Etc/GMT", "GMT", "UCT", "Z", "Zulu", "+00:00", "+00", "UTC+0"})
_OFFSET = r"(?:Z|UTC|GMT|[+-]\d{1,2}(?::?\d{2})?)"
_WITH_OFFSET = re.compile(rf"cast\([^()]*:[^()]*{_OFFSET} as timestamp\)")  # an instant, whatever the zone is
_LITERAL = re.compile(r"\btimestamp(?:_ltz)?\s*(['\"])(.*?)\1", re.IGNORECASE)
_IS_INSTANT = re.compile(rf":.*{_OFFSET}\s*$")
_DATE = re.compile(r"(['\"])(\s*[+-]?\d{4,}-\d.*?|\d{4})\1")
_OPERATORS = re.compile(r"\n(?=[ :]*[+:]- )")  # a text in a condition may hold newlines
_READS = (
    "as date)", "as string)", "as timestamp_ntz)", "extract(", "date_part(", "datepart(", "try_make_timestamp(", "btrim(",
)  # fmt: skip
# Days and months are added on the calendar of the zone, and two times are subtracted there; the plan shows `t + i` and `(t - u)` alone.
_INTERVAL = re.compile(
    r"(?<!['\"])\binterval\s*[-+'\"\d]|\bas interval\b|make_(?:dt_|ym_)?interval\(|try_subtract\(", re.IGNORECASE
)
_SUBTRACTION = re.compile(r"(\S+) - (?=(\S+))")
_NO_INSTANT = re.compile(r"\(*(?:-?\w+(?:\.\d+)?|([^\s()#]+)#\d+L?)[),]*")  # a number, a word of a text, a column
_HIDES = re.compile(r"\b(?:between|nvl2?|ifnull|nullif|equal_?null)\(")
_MAKES_TIME = re.compile(r"(date|time)\w*\(", re.IGNORECASE)
_MADE = re.compile(r"\b(?:timestamp_(?:seconds|millis|micros)|try_make_timestamp)\(")


def zone_of(spark: SparkSession) -> str:
    """That of the session; one name for UTC."""
    zone = str(spark.conf.get(SETTING))
    return "UTC" if zone in _UTC else zone


def depends(where: str, analyzed: str, types: Mapping[str, str]) -> bool:
    """Whether a condition turns texts, dates or parts of a date into instants, or the other way round, or calculates with instants.

    Args:
        analyzed: the same as Spark's analyzed plan shows it.
        types: Spark type by column.
    """
    analyzed = _WITH_OFFSET.sub("", analyzed)
    condition = _condition(analyzed)
    if "as timestamp)" in condition or ", Some(" in condition:
        return True
    if _without_offset(_LITERAL, where):
        return True
    instants = [name for name, kind in types.items() if "timestamp" in kind.replace("timestamp_ntz", "")]
    local = [name for name, kind in types.items() if kind in ("date", "timestamp_ntz")]
    # Of some functions, as BETWEEN, the plan does not show what they cast.
    hidden = _without_offset(_DATE, where) or (_HIDES.search(condition) and _names_one(condition, local))
    reads = hidden or any(word in condition for word in _READS)
    calculates = _INTERVAL.search(f"{where}\n{condition}") or _subtracts(condition, instants)
    has_instant = _names_one(condition, instants) or bool(_MADE.search(condition))
    return has_instant and bool(reads or calculates)


def reads_time(analyzed: str, types: Mapping[str, str]) -> bool:
    """Whether a text in a condition may become a date or a time; the arguments are those of `depends`."""
    shown = analyzed.replace("cast(null as ", "")  # the columns themselves
    of_time = [name for name, kind in types.items() if "date" in kind or "timestamp" in kind]
    makes_time = _MAKES_TIME.search(shown) or any(word in shown for word in (*_READS, "as timestamp)"))
    return bool(makes_time) or _names_one(_condition(analyzed), of_time)


def _condition(analyzed: str) -> str:
    return "\n".join(operator for operator in _OPERATORS.split(analyzed) if "Join " in operator)


def _subtracts(condition: str, instants: Iterable[str]) -> bool:
    """Whether something is subtracted that may be an instant: a column of that type, or what has parts of its own."""
    named = {name.casefold() for name in instants}
    for left, right in _SUBTRACTION.findall(condition):
        for is_last, text in ((True, left), (False, right)):
            plain = _NO_INSTANT.fullmatch(text)
            if plain is None or (is_last and text.endswith(")")) or (plain[1] or "").casefold() in named:
                return True
    return False


def _names_one(condition: str, columns: Iterable[str]) -> bool:
    """Whether a column is in it, which the plan shows in the case of the filter."""
    return any(re.search(rf"(?<!\w){re.escape(name)}#", condition, re.IGNORECASE) for name in columns)


def _without_offset(texts: re.Pattern[str], where: str) -> bool:
    return any(not _IS_INSTANT.search(text[2]) for text in texts.finditer(where))


def refuse_another(spark: SparkSession, sync: str, earlier: Iterable[str]) -> None:
    """Nobody knows what a filter chose in another zone.

    Args:
        earlier: the zones in which its filter was applied; empty texts: it did not depend on them.

    Raises:
        ConfigurationError: the session has another one.
    """
    zone = zone_of(spark)
    others = sorted({one for one in earlier if one} - {zone})
    if others:
        found = f"a `where` whose times are read in the session's time zone, which is {zone}"
        next_step = f"set {SETTING}: {others[0]} in server_side_parameters; to be free of it, write times with an offset, as timestamp'2026-01-31 00:00:00Z', calculate with them in the model, and push once"
        raise mistake(sync, found, f"{others[0]}, as in the pushes before", next_step)
