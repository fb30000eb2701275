"""From a task and its options to the plan of its requests, or to everything that is wrong with them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from urllib.parse import quote

import orjson
import pyarrow as pa

from dbt_reverse_etl.base.errors import Problem
from dbt_reverse_etl.sinks.base import Mode, SinkTask
from dbt_reverse_etl.sinks.http.body import BodyError, BodyTemplate, UnsafeError, compiled
from dbt_reverse_etl.sinks.http.call import Call, Template, resolves_elsewhere
from dbt_reverse_etl.sinks.http.options import HttpOptions, OperationOptions
from dbt_reverse_etl.sinks.http.request import Plan
from dbt_reverse_etl.sinks.http.settings import HEADER_VALUE
from dbt_reverse_etl.sinks.http.template import PRESET, samples, template_text

_USED = {
    Mode.UPSERT: {"insert": "insert", "update": "update"},
    Mode.MIRROR: {"insert": "insert", "update": "update", "delete": "delete"},
    # A repeat of either operation is the one that the mode allows.
    Mode.INSERT_ONLY: {"insert": "insert", "update": "insert"},
    Mode.UPDATE_ONLY: {"insert": "update", "update": "update"},
}
_A_TEMPLATE = "a Jinja file of the project that writes JSON with `rows` (or `row`, without batches), `object` and `key`"
_INSTEAD_OF_A_PRESETS = "leave key and rows as the preset has them, or name a file of your own in body_template"
_PATH = re.compile(r"[A-Za-z0-9\-._~/?&=:@!$'()*+,;%]*")


def plan_of(
    task: SinkTask, options: HttpOptions, *, preset: str | None = None, tries: bool = False
) -> tuple[Plan, list[Problem]]:
    """The plan of a task, and everything that is wrong with it; the plan may be used only if nothing is. The API of a preset has the
    requests that it names, and no other. `tries` templates with a sample of rows, so that no mistake waits until something is sent."""
    problems = [*_field_problems(task, options)]
    if first := [*_key_problems(task, options), *_constant_problems(task, options)]:
        return Plan({}, task.key, task.mode, options), first + problems  # the requests would only say it again
    used = _USED.get(task.mode, {})
    calls: dict[str, Call] = {}
    for operation, name in used.items():
        where = f"sync {task.sync}: options.{name}"
        written = _written(name, task, options, rest=preset is None)
        if written.method is None or written.path is None:
            found = f"no whole request, here or in preset {preset}" if preset else "nothing"
            expected = "a request that is named, because no default is safe here"
            next_step = f"set options.{name}.method and options.{name}.path{_instead(name, options)}"
            problems.append(Problem(where, found, expected, next_step))
            continue
        call, wrong = _call(written, name, task, options), list[Problem]()
        if written.body_template is not None:
            template, wrong = _template(written.body_template, call, where, task, options, tries=tries)
            call = replace(call, template=template)
        is_whole = written.body_template is None or call.template is not None
        problems += [*(_call_problems(call, name, where, task) if is_whole else ()), *wrong]
        calls[operation] = call
    problems += _answer_problems(task, calls.values(), options)
    # What a preset offers beyond the mode is no mistake of the sync.
    own = task.options if isinstance(task.options, HttpOptions) else options
    problems += _unused_problems(task, own, set(used.values()))
    return Plan(calls, task.key, task.mode, options), list(dict.fromkeys(problems))


_OF_PATH = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})+")  # RFC 3986, 3.3


def _written(name: str, task: SinkTask, options: HttpOptions, *, rest: bool) -> OperationOptions:
    """The request as it is written, over the default where one is safe; without `rest` none is."""
    upserts = task.mode in (Mode.UPSERT, Mode.MIRROR)
    own: OperationOptions | None = getattr(options, name)
    written = own or (options.upsert if name != "delete" and upserts else None) or OperationOptions.model_validate({})
    if not (rest and upserts) or (written.rows or options.batch.rows) > 1 or written.method or written.path:
        return written
    # What can be sent as it is may be percent-encoded already.
    begin = task.object if _OF_PATH.fullmatch(task.object) else "{_object}"
    path = "/".join([begin, *(f"{{{field}}}" for field in task.key)])
    return written.model_copy(update={"method": "DELETE" if name == "delete" else "PUT", "path": path})


def _instead(name: str, options: HttpOptions) -> str:
    """The mode that does without the operation, where its requests are named."""
    if name == "delete":
        return ", or take mode upsert, which deletes nothing" if options.upsert or options.update else ""
    return ", or take mode insert_only" if options.insert and not options.upsert else ""


def _call(written: OperationOptions, name: str, task: SinkTask, options: HttpOptions) -> Call:
    rows = written.rows or options.batch.rows
    without = "none" if rows == 1 and written.body_template is None else "key"
    return Call(
        method=written.method or "",
        path=Template.parse(_named(written.path or "", task).lstrip("/")),
        headers=tuple((header, Template.parse(_named(value, task))) for header, value in written.headers.items()),
        body=written.body or (without if name == "delete" else "fields"),
        deletes=name == "delete",
        rows=rows,
        success=written.success,
        results=options.results_of(written),
    )


def _named(text: str, task: SinkTask) -> str:
    """The placeholders that are the same for each row."""
    text = text.replace("{_object}", quote(task.object, safe="/"))
    if len(task.key) != 1:
        return text
    return text.replace("{_key}", quote(task.key[0], safe="")).replace("{_id}", f"{{{task.key[0]}}}")


def _template(  # noqa: PLR0913  (each is a fact of the request)
    name: str, call: Call, where: str, task: SinkTask, options: HttpOptions, *, tries: bool
) -> tuple[BodyTemplate | None, list[Problem]]:
    """The compiled template, and what is wrong with it."""
    place, template = f"{where}.body_template", None
    if options.batch.wrap is not None or call.body == "none":
        return None, [Problem(place, "batch.wrap or body: none beside it", "the whole body in the file", "remove it")]
    try:
        text = task.texts[name] if name in task.texts else template_text(name, task.project_dir)
        template = compiled(text, task.object, task.key, nulls=options.nan == "null")
        if tries:
            _try(template, call, task, options)
    except BodyError as problem:
        found = f"{problem} (tried with sample rows)" if template else str(problem)
        next_step = _INSTEAD_OF_A_PRESETS if name.startswith(PRESET) else f"correct {name}"
        return template, [Problem(place, found, _A_TEMPLATE, next_step)]
    return template, []


def _try(template: BodyTemplate, call: Call, task: SinkTask, options: HttpOptions) -> None:
    """Raise what a sample of rows shows. Where their types are not known, only what is wrong with any rows."""
    fields = task.key if call.body == "key" else tuple(task.schema.names)
    count, is_typed = min(call.rows, 2), task.known == "types"
    rows = samples(pa.schema([task.schema.field(field) for field in fields]), count, options.constants)
    try:
        template.try_out(rows, alone=call.alone, whole=is_typed)
    except BodyError as problem:
        if is_typed or isinstance(problem, UnsafeError):
            raise


def _key_problems(task: SinkTask, options: HttpOptions) -> Iterator[Problem]:
    if options.key is None or (len(task.key) == 1 and options.key in ("*", task.key[0])):
        return
    expected = "one, of any name" if options.key == "*" else f"one, {options.key}"
    next_step = "take a changelog with such a key, and name the field in fields; or write requests of your own"
    yield Problem(f"sync {task.sync}", f"key fields {', '.join(task.key)}", expected, next_step)


def _constant_problems(task: SinkTask, options: HttpOptions) -> Iterator[Problem]:
    for name, value in options.constants.items():
        try:
            orjson.dumps(value)
        except orjson.JSONEncodeError:
            place, expected = f"sync {task.sync}: options.constants.{name}", "whole numbers of 64 bits at most"
            yield Problem(place, "a value that JSON encoders do not take", expected, "write it as a text")


def _field_problems(task: SinkTask, options: HttpOptions) -> Iterator[Problem]:
    for name in sorted(options.constants.keys() & set(task.schema.names)):
        place = f"sync {task.sync}: options.constants"
        yield Problem(place, f"{name}, which is a field too", "a name of its own", f"rename or remove {name}")


def _answer_problems(task: SinkTask, calls: Collection[Call], options: HttpOptions) -> Iterator[Problem]:
    """Options with which an answer would be misread."""
    where = f"sync {task.sync}: options"
    results = [call.results for call in calls if call.results]
    if options.codes and options.error is None and not any(one.error or one.refused for one in results):
        yield Problem(f"{where}.codes", "error codes alone", "error or results.error, the place of the code", "set it")
    for call in calls:
        only_refused = call.results is not None and call.results.path is None and call.results.refused_count is None
        if only_refused and (call.success or options.success).body is None:
            expected = "what an answer without refusals says: success.json, or results.refused_count"
            yield Problem(f"{where}.results", "path: null alone", expected, "set one of them")


def _call_problems(call: Call, name: str, where: str, task: SinkTask) -> Iterator[Problem]:
    yield from _text_problems(call, where)
    known = set(task.key) if name == "delete" else set(task.schema.names)
    for field in sorted(call.fields - known) if name == "delete" or task.known != "key" else ():
        expected = f"one of {', '.join(sorted(known))}"
        yield Problem(where, f"placeholder {{{field}}}", expected, "use the destination field's name")
    for field in sorted(call.fields & known):
        if pa.types.is_nested(task.schema.field(field).type):
            yield Problem(where, f"placeholder {{{field}}}", "a field with one value", "take another field")
    if not call.alone and call.fields:
        yield Problem(where, "placeholders", "none with batch.rows above 1", "set batch.rows to 1, or remove them")
    if not call.alone and call.body == "none":
        yield Problem(where, "body: none", "a body that names the rows of a batch", "set body to key or fields")
    missing = [field for field in task.key if field not in call.path.fields]
    addresses_one_row = name in ("update", "delete") or call.method != "POST"
    if call.is_of_one_row and addresses_one_row and missing:
        found = f"{call.method} with a path that does not name {', '.join(missing)}"
        expected = "a path with a placeholder for each key field"
        yield Problem(where, found, expected, f"write path: .../{'/'.join(f'{{{field}}}' for field in task.key)}")
    if call.by_id and len(task.key) != 1:
        found = f"by: id with {len(task.key)} key fields"
        yield Problem(f"sync {task.sync}: options.results", found, "one key field", "use by: index")


def _text_problems(call: Call, where: str) -> Iterator[Problem]:
    path = "".join(call.path.literals)
    if not _PATH.fullmatch(path) or "://" in path or resolves_elsewhere("x".join(call.path.literals)):
        expected = "a relative path, percent-encoded, with {field} placeholders"
        yield Problem(where, "a path that cannot be sent as it is", expected, "correct path")
    for header, template in call.headers:
        if not HEADER_VALUE.fullmatch("x".join(template.literals)) or re.search(r"[{}]", "".join(template.literals)):
            yield Problem(where, f"a value of header {header} that cannot be sent", "printable ASCII", "correct it")


def _unused_problems(task: SinkTask, options: HttpOptions, used: set[str]) -> Iterator[Problem]:
    if options.upsert is not None and used >= {"insert", "update"} and not (options.insert and options.update):
        used = used | {"upsert"}
    for name in ("insert", "update", "upsert", "delete"):
        if getattr(options, name) is not None and name not in used:
            where = f"sync {task.sync}: options.{name}"
            expected = f"only what mode {task.mode.value} sends"
            yield Problem(where, "a request that would never be sent", expected, f"remove options.{name}")
