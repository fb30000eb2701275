{#
  A spec of a snapshot, {fields, where}, over the table as it is now: a column that came back with another type has its values of then under another name
  (see _reconcile_columns). What nothing is left of is NULL. At 0 nothing was delivered.
    head      the newest snapshot
    present   all columns of the table: {name: type}
    columns   those of the model: list of {name, type}
#}
{% macro _spec_at(spec, snapshot, head, present, columns) %}
    {%- set types, fields, values = {}, [], {} -%}
    {%- for column in columns -%}{%- do types.update({column.name | lower: column.type}) -%}{%- endfor -%}
    {%- set former = reverse_etl._former_columns(snapshot, head, present, types) -%}
    {%- for column, kept in former.items() -%}{%- do values.update({column: reverse_etl._quote(kept[0].name)}) -%}{%- endfor -%}
    {%- for field in spec.fields -%}
        {%- set column, kept = field.column | lower, [] -%}
        {%- set now = types.get(column, field.type) -%}
        {%- for one in former.get(column, []) if reverse_etl._may_have_been(one.type, field.type) -%}{%- do kept.append(one.name) -%}{%- endfor -%}
        {%- if kept -%}
            {%- do fields.append(dict(field, column=kept[0])) -%}
            {%- do values.update({column: reverse_etl._quote(kept[0])}) -%}
        {%- elif now == field.type or reverse_etl._is_wider(now, field.type) or reverse_etl._is_wider(field.type, now) -%}
            {%- do fields.append(field) -%}
            {%- do values.pop(column, none) -%}
        {%- else -%}
            {%- do fields.append(dict(field, column=none)) -%}
            {%- do values.update({column: 'cast(null as ' ~ field.type ~ ')'}) -%}
        {%- endif -%}
    {%- endfor -%}
    {{ return({'fields': fields, 'where': reverse_etl._with_values(spec.where, values) if snapshot else 'false'}) }}
{% endmacro %}


{#
  The columns that were put aside after a snapshot, {former name: list of {name, type}, the oldest first}. One that is only called so has the type of what came
  after it, or a number that no capture had; the number after the head is that of a capture that was killed when it had altered the table.
#}
{% macro _former_columns(snapshot, head, present, types) %}
    {%- set found, former, after = [], {}, {} -%}
    {%- for name, type in present.items() -%}
        {%- do after.update({name | lower: type}) -%}
        {%- set match = modules.re.fullmatch('(.+)_before_([0-9]+)', name) -%}
        {%- if match and name | lower not in types and snapshot < match.group(2) | int <= head + 1 -%}
            {%- do found.append({'column': match.group(1) | lower, 'until': match.group(2) | int, 'name': name, 'type': type}) -%}
        {%- endif -%}
    {%- endfor -%}
    {%- for one in found | sort(attribute='until', reverse=true) -%}
        {%- set next = after.get(one.column) -%}
        {%- if next is none or not reverse_etl._may_have_been(next, one.type) -%}
            {%- do former.update({one.column: [one] + former.get(one.column, [])}) -%}
            {%- do after.update({one.column: one.type}) -%}
        {%- endif -%}
    {%- endfor -%}
    {{ return(former) }}
{% endmacro %}

{# Whether a column of a type may have had another one, without being put aside. Spark names a text of limited length in two ways. #}
{% macro _may_have_been(type, before) %}
    {%- set now, then = modules.re.sub('^(var)?char[(].*', 'string', type), modules.re.sub('^(var)?char[(].*', 'string', before) -%}
    {{ return(now == then or reverse_etl._is_wider(now, then)) }}
{% endmacro %}


{#
  A condition with other values, {name in small letters: SQL}, in the place of columns. No lambda gives them their names: Spark takes no function of a user in one.
  A word is no column in a text, after a dot or `::` (field, type), after `as` (type), after a number or text, in extract or dateadd (unit), before a text (type), `(` (function) or `=>`.
#}
{% macro _with_values(condition, values) %}
    {%- set text = "'(?:[^'\\\\]|\\\\.)*'|\"(?:[^\"\\\\]|\\\\.)*\"" -%}
    {%- set unit = '\\s+(?:as\\s+)?\\w+(?:\\s+to\\s+\\w+)?' -%}
    {%- set units = 'year|quarter|month|week|day|hour|minute|second' -%}
    {%- set tokens = [
        '/[*].*?[*]/|--[^\n]*', 'extract\\s*[(]\\s*\\w+(?=\\s+from\\b)', '(?:timestamp|date)_?(?:add|diff)\\s*[(]\\s*(?:' ~ units ~ ')(?=\\s*,[^()]*,)',
        "[rR](?:'[^']*'|\"[^\"]*\")", '(?:\\w+\\s*)?(?:' ~ text ~ ')(?:' ~ unit ~ ')?', '\\d+(?:[.]\\d*)?' ~ unit, 'as\\s+\\w+(?:\\s*<[^()]*>)?',
        '[.:]+\\s*(?:\\w+|`[^`]*`)', '\\w+\\s*(?:[(]|=>)', '`(?:[^`]|``)*`', '\\w+',
    ] -%}
    {%- set parts = [] -%}
    {%- for part in (modules.re.split('(?is)(' ~ tokens | join('|') ~ ')', condition) if condition and values else []) -%}
        {%- set name = part[1:-1] | replace('``', '`') if part.startswith('`') else part -%}
        {%- do parts.append(values[name | lower] if loop.index0 is odd and name | lower in values else part) -%}
    {%- endfor -%}
    {{ return(parts | join if parts else condition) }}
{% endmacro %}
