{# The stage: the uncommitted changes, in a table named by the capture. #}

{% macro _stage_relation(target, capture_uuid) %}
    {{ return(reverse_etl._temporary_relation(target, '__uncommitted_', capture_uuid)) }}
{% endmacro %}

{% macro _temporary_relation(target, purpose, capture_uuid) %}
    {%- set identifier = target.identifier ~ purpose ~ run_started_at.strftime('%Y%m%d%H%M%S') ~ '_' ~ capture_uuid[:8] -%}
    {{ return(target.incorporate(path={'identifier': identifier}, type='table')) }}
{% endmacro %}


{# Nobody else reads these tables, so they need no log of their own; Unity Catalog manages tables of no other format, where a column has any name only so. #}
{% macro _private_format(properties={}) -%}
    {%- set all = {'delta.columnMapping.mode': 'name'} if target.type == 'databricks' else {} -%}
    {%- do all.update(properties) -%}
    {{ 'delta' if target.type == 'databricks' else 'parquet' }}
    {%- if all %} tblproperties ({% for name, value in all.items() %}'{{ name }}' = {{ reverse_etl._string(value) }}{{ ', ' if not loop.last }}{% endfor %}){% endif -%}
{%- endmacro %}


{#
  A query's rows as a table of this run. `may_fail`: false, and no table, where the query fails: only a script of Spark can catch that.
#}
{% macro _store_private(relation, query, may_fail=false) %}
    {%- set create = 'create table ' ~ relation ~ ' using ' ~ reverse_etl._private_format() ~ ' as ' ~ query -%}
    {%- if not may_fail -%}
        {%- do run_query(create) -%}
        {{ return(true) }}
    {%- endif -%}
    {#- Spark 4.0 has them switched off. -#}
    {%- if target.type != 'databricks' -%}{%- do run_query('set `spark.sql.scripting.enabled` = `true`') -%}{%- endif -%}
    {{ return(run_query('begin declare exit handler for sqlexception begin select 0; end; ' ~ create ~ '; select 1; end').rows[0][0] | int == 1) }}
{% endmacro %}


{# What runs that were killed left behind. A day later no run can still be using it. #}
{% macro _drop_leftovers(target) %}
    {%- set day_ago = (run_started_at - modules.datetime.timedelta(days=1)).strftime('%Y%m%d%H%M%S') -%}
    {%- for table in reverse_etl._temporary_relations(target) if table.began < day_ago -%}
        {%- do adapter.drop_relation(target.incorporate(path={'identifier': table.name}, type='table')) -%}
    {%- endfor -%}
{% endmacro %}


{# The tables of runs that lie beside a changelog: [{name, purpose, began: when their run began}] #}
{% macro _temporary_relations(target) %}
    {%- set tables = [] -%}
    {%- for row in run_query('show tables in ' ~ target.without_identifier() ~ " like '" ~ target.identifier ~ "__*'").rows if not row[2] -%}
        {%- for purpose in ['__uncommitted_', '__model_', '__candidates_', '__groups_', '__changes_', '__kafka_', '__files_', '__landing_', '__events_'] -%}
            {#- Spark lists names in lower case; another catalog may not. -#}
            {%- set name, begin = row[1], (target.identifier ~ purpose) | lower -%}
            {#- Somebody's orders__events_2024 is none of ours. -#}
            {%- if (name | lower).startswith(begin) and modules.re.fullmatch('[0-9]{14}_[0-9a-f]{8}', name[begin | length:]) -%}{%- do tables.append({'name': name, 'purpose': purpose, 'began': name[begin | length:][:14]}) -%}{%- endif -%}
        {%- endfor -%}
    {%- endfor -%}
    {{ return(tables) }}
{% endmacro %}


{#
  Returns {inserts, updates, deletes, null_keys, duplicate_keys: rows; surplus: rows that share their key with another one, not listed}. Of candidates
  each one that does is listed, and no keys need to be counted.
#}
{% macro _stage_counts(stage, head, columns, query) %}
    {%- set counts = {'inserts': 0, 'updates': 0, 'deletes': 0, 'tombstones': 0, 'null_keys': 0, 'duplicate_keys': 0, 'totals': 0, 'total': none, 'new_keys': 0} -%}
    {%- for row in run_query(
        'select _stage, count(*), max(_old_snapshot_id), ' ~ ('0' if query.candidates else 'count(distinct ' ~ reverse_etl._columns(columns.key) ~ ')') ~ ' from ' ~ stage ~ ' group by _stage'
    ).rows -%}
        {%- do counts.update({row[0] ~ 's': row[1] | int}) -%}
        {%- if row[0] == 'total' -%}{%- do counts.update({'total': row[2] | int}) -%}{%- endif -%}
        {%- if row[0] == 'insert' -%}{%- do counts.update({'new_keys': row[3] | int}) -%}{%- endif -%}
    {%- endfor -%}
    {%- set kept = (head.live_rows if head is not none else 0) - counts.deletes -%}
    {%- set surplus = 0 if counts.total is none else counts.total - counts.null_keys - counts.new_keys - kept -%}
    {%- do counts.update({'surplus': surplus}) -%}
    {{ return(counts) }}
{% endmacro %}


{# NULL and duplicate keys: fail, or keep them out and record why. The rows stand in <changelog>__bad_keys either way. #}
{% macro _check_keys(target, stage, counts, columns, query, settings) %}
    {%- set bad_keys = target.incorporate(path={'identifier': target.identifier ~ '__bad_keys'}, type='table') -%}
    {%- set existing = load_cached_relation(bad_keys) -%}
    {%- if not (counts.null_keys or counts.duplicate_keys or counts.surplus) -%}
        {%- if existing is not none -%}{%- do adapter.drop_relation(existing) -%}{%- endif -%}
        {{ return([]) }}
    {%- endif -%}
    {%- set properties = reverse_etl._naming_properties(columns.names) -%}
    {%- do properties.update(reverse_etl._type_properties(columns.model)) -%}
    {%- call statement('bad_keys') -%}
        create or replace table {{ bad_keys }} using delta
        {%- if properties %} tblproperties ({% for name, value in properties.items() %}'{{ name }}' = '{{ value }}'{{ ', ' if not loop.last }}{% endfor %}){% endif %} as
        {%- if settings.on_bad_key == 'quarantine' %}
        select _stage as _reason, {{ reverse_etl._columns(columns.names) }} from {{ stage }} where _stage in ('null_key', 'duplicate_key')
        {%- else %}
        select if({{ reverse_etl._any_null(columns.key) }}, 'null_key', 'duplicate_key') as _reason, {{ reverse_etl._columns(columns.names) }}
        from (select *, count(*) over (partition by {{ reverse_etl._columns(columns.key) }}) as _copies from {{ query.rows }})
        where _copies > 1 or {{ reverse_etl._any_null(columns.key) }}
        {%- endif %}
    {%- endcall -%}
    {%- if settings.on_bad_key == 'fail' -%}
        {%- set found = {'null_key': 0, 'duplicate_key': 0} -%}
        {%- for row in run_query('select _reason, count(*) from ' ~ bad_keys ~ ' group by _reason').rows -%}
            {%- do found.update({row[0]: row[1]}) -%}
        {%- endfor -%}
        {%- do adapter.drop_relation(stage) -%}
        {%- do reverse_etl._drop_model_query(query) -%}
        {%- if not (found.null_key or found.duplicate_key) -%}
            {%- do adapter.drop_relation(bad_keys) -%}
            {{ exceptions.raise_compiler_error(
                'changelog ' ~ target ~ ': found ' ~ (counts.surplus | abs) ~ ' rows more or less than its head and the changes make; expected one capture at a time, and a model that gives the same rows when it is read again; '
                ~ reverse_etl._nothing_captured(settings) ~ '. Next: run it again; if somebody deleted rows of the changelog itself, restore the version before'
            ) }}
        {%- endif -%}
        {{ exceptions.raise_compiler_error(
            'changelog ' ~ target ~ ': found ' ~ found.null_key ~ ' rows with a NULL key and ' ~ found.duplicate_key ~ ' rows that share their key (' ~ settings.key | join(', ')
            ~ '); expected each key once; ' ~ reverse_etl._nothing_captured(settings) ~ '. Next: select * from ' ~ bad_keys ~ ', correct the model, or set meta.reverse_etl.on_bad_key: quarantine'
        ) }}
    {%- endif -%}
    {%- set listed = run_query(
        "select to_json(array_sort(collect_list(named_struct('key', _key, 'reason', _reason, 'row_count', row_count)))) from (select "
        ~ reverse_etl._key_json(settings.key) ~ ' as _key, _reason, count(*) as row_count from ' ~ bad_keys ~ ' group by all order by 1 limit 1000)'
    ).rows[0][0] -%}
    {{ return(fromjson(listed)) }}
{% endmacro %}
