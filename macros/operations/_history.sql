{# What the operations on a changelog's history share. While dbt parses a hook that calls one, it does nothing: there is no graph yet. #}

{#
  The names of tables come from the manifest, and dbt's partial parsing keeps one that was made for another target or profile. Of an older version of
  this package none is known.
#}
{% macro _refuse_other_target() %}
    {%- set ledger = graph.nodes.get('model.reverse_etl.reverse_etl_ledger') -%}
    {%- set made_for = ((ledger.config.get('meta') or {}) if ledger else {}).get('reverse_etl_made_for') -%}
    {%- for part, ours in {'target': target.name, 'profile': target.profile_name}.items() if made_for is mapping and made_for.get(part) and made_for[part] != ours -%}
        {{ exceptions.raise_compiler_error(
            'manifest: found the tables of ' ~ part ~ ' ' ~ made_for[part] ~ ', for which it was made; expected those of ' ~ ours ~ ', the ' ~ part ~ ' of this command. Nothing was changed. '
            ~ 'Next: repeat it with --no-partial-parse, and give dbtRunner no manifest of another ' ~ part
        ) }}
    {%- endfor -%}
{% endmacro %}


{#
  The changelog that an operation works on. Returns {name, node, uuid: of this operation, target, head, present: all columns of the table,
  columns: {key, model: [{name, type}], names, dropped: columns of the table that the head no more has}}
    by_hooks  whether a hook may call it, too: then none, with a line, where there is nothing to work on
#}
{% macro _opened_changelog(operation, name, by_hooks=false) %}
    {%- set node = reverse_etl._changelog_node(name) -%}
    {%- set found = reverse_etl._found(node) -%}
    {%- set head = found.head -%}
    {%- if by_hooks and reverse_etl._is_left_out(operation, name, 'no snapshot' if head is none else '') -%}{{ return(none) }}{%- endif -%}
    {%- if head is none -%}
        {%- do reverse_etl._operation_refuse(operation, name, 'no snapshot', 'a changelog that was captured', 'dbt run --select ' ~ name) -%}
    {%- endif -%}
    {{ return({
        'name': name, 'node': node, 'uuid': local_md5(invocation_id ~ '.' ~ operation ~ '.' ~ node.unique_id ~ '.' ~ head.snapshot_id), 'target': found.target, 'head': head, 'present': found.present,
        'columns': reverse_etl._columns_at(head, [], found.present[reverse_etl._own_columns() | length:]),
    }) }}
{% endmacro %}


{#
  Whether an operation does nothing in a hook, with a line that names why: a hook also runs in commands that capture nothing, such as `dbt seed` in a new
  schema, and must not fail them. --empty is a check, which removes nothing.
#}
{% macro _is_left_out(operation, name, absent) %}
    {%- if flags.WHICH == 'run-operation' -%}{{ return(false) }}{%- endif -%}
    {%- set why = 'there is ' ~ absent ~ ' yet' if absent else 'of --empty or --sample' if reverse_etl._is_partial() else '' -%}
    {%- if why -%}{%- do log(operation ~ ' ' ~ name ~ ': nothing done, because ' ~ why, info=true) -%}{%- endif -%}
    {{ return(why != '') }}
{% endmacro %}


{# What stands in the place of a changelog: {target: its table or none, present: all columns of it, head: its newest header or none}. #}
{% macro _found(node) %}
    {%- set target = adapter.get_relation(database=node.database, schema=node.schema, identifier=node.alias) -%}
    {%- set present = reverse_etl._columns_of(target) if target is not none else [] -%}
    {%- set is_changelog = '_snapshot_id' in present | map(attribute='name') -%}
    {{ return({'target': target, 'present': present, 'head': reverse_etl._head(target) if is_changelog else none}) }}
{% endmacro %}


{# The columns of the head, then those of `more` that it has no more; all others of the table are dropped ones. #}
{% macro _columns_at(head, more, present) %}
    {%- set model, names = [], [] -%}
    {%- for column in head.columns + more if column.name | lower not in names -%}
        {%- for found in present if found.name | lower == column.name | lower -%}
            {%- do model.append({'name': found.name, 'type': column.type}) -%}
        {%- endfor -%}
        {%- do names.append(column.name | lower) -%}
    {%- endfor -%}
    {%- set dropped = [] -%}
    {%- for column in present if column.name | lower not in names -%}
        {%- do dropped.append({'name': column.name, 'type': column.type}) -%}
    {%- endfor -%}
    {{ return({'key': head.key_columns, 'model': model, 'names': model | map(attribute='name') | list, 'dropped': dropped, 'gone': [], 'added': [], 'widened': [], 'present': present}) }}
{% endmacro %}


{#
  A snapshot that changes no row, with a full image of the head where `image` names the kind of its rows. Returns its header.
  Without one of its own the base stays, though a capture that was killed between two labels may leave it to be moved.
#}
{% macro _commit_unchanged(changelog, facts, image=none) %}
    {%- set target, head, columns = changelog.target, changelog.head, changelog.columns -%}
    {%- do reverse_etl._add_header_fields(target, changelog.present) -%}
    {%- set header = reverse_etl._next_header(head, {'inserts': 0, 'updates': 0, 'deletes': 0}, columns, changelog.uuid, facts, checkpoint=true if image == 'checkpoint' else none) -%}
    {%- set stage = reverse_etl._stage_relation(target, changelog.uuid) if image else none -%}
    {%- if image -%}
        {%- set names = columns.names + columns.dropped | map(attribute='name') | list -%}
        {%- call statement('stage') -%}
            create table {{ stage }} using {{ reverse_etl._private_format() }} as
            select '{{ image }}' as _stage, {{ reverse_etl._columns(names) }}, _row_hash, _snapshot_id as _old_snapshot_id
            from ({{ reverse_etl._image(target, columns.key, names, head.base, head.snapshot_id, newest=true) }})
        {%- endcall -%}
    {%- endif -%}
    {%- do reverse_etl._commit_staged(target, stage, head, header, columns) -%}
    {%- if image -%}{%- do adapter.drop_relation(stage) -%}{%- endif -%}
    {{ return(header) }}
{% endmacro %}


{# The savepoints that were made and not given up: {name: snapshot id} #}
{% macro _savepoints(target) %}
    {%- set kept = {} -%}
    {%- for row in run_query(
        "select _header.savepoint, max(_snapshot_id), max_by(_header.kind, _snapshot_id) from " ~ target
        ~ " where _change = 'snapshot' and _header.savepoint is not null group by 1 order by 2"
    ).rows if row[2] == 'savepoint' -%}
        {%- do kept.update({row[0]: row[1] | int}) -%}
    {%- endfor -%}
    {{ return(kept) }}
{% endmacro %}


{% macro _operation_refuse(operation, where, found, expected, next_step) %}
    {{ exceptions.raise_compiler_error(operation ~ ' ' ~ where ~ ': found ' ~ found ~ '; expected ' ~ expected ~ '. Nothing was changed. Next: ' ~ next_step) }}
{% endmacro %}

{% macro _operation_done(operation, changelog, what) %}
    {%- do log(operation ~ ' ' ~ changelog.name ~ ': ' ~ what, info=true) -%}
{% endmacro %}

{% macro _command(operation, arguments) -%}
    dbt run-operation {{ operation }} --args '{{ ('{' ~ arguments ~ '}') | replace("'", "'\\''") }}'
{%- endmacro %}
