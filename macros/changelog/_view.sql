{# What the views of a changelog share. A relation is never given an alias: dbt may hand over a sub-query that already has one. #}

{# The model's columns, of an alias if one is given: those that are named, or all but ours and the helpers of the view. #}
{% macro _view_columns(columns=none, helpers=[], alias=none) -%}
    {%- if columns -%}{{ reverse_etl._columns([columns] if columns is string else columns, alias) }}
    {%- else -%}{{ alias ~ '.' if alias }}* except ({{ (['_change', '_snapshot_id', '_captured_at', '_row_hash', '_header'] + helpers) | join(', ') }})
    {%- endif -%}
{%- endmacro %}


{#
  Refuses a column of the model with a name that the view gives: Spark's error would name neither the view nor a way out.
  What is no table yet, or a sub-query, is not looked at.
#}
{% macro _refuse_taken(view, relation, columns, added, next_step) -%}
    {%- set names = [columns] if columns is string else columns -%}
    {%- set is_named = not names and execute is defined and execute and relation is not string and relation.identifier and relation.schema -%}
    {#- Not `relation` itself: with --empty that is a sub-query. -#}
    {%- set table = load_cached_relation(relation) if is_named else none -%}
    {%- set names = names or (reverse_etl._described(table) | map(attribute='name') | list if table is not none else []) -%}
    {%- set taken = names | map('lower') | select('in', added | map('lower') | list) | list -%}
    {%- if taken -%}
        {%- do reverse_etl._view_refuse('reverse_etl.' ~ view, 'a column ' ~ taken | join(', ') ~ ' beside that of the view', 'columns with other names', next_step) -%}
    {%- endif -%}
{%- endmacro %}


{#
  All rows of a changelog, for what depends on all of them. dbt cuts a relation with `event_time` to a part of the time, in which a key that was deleted
  later is still there. With --sample the result is that of all rows. A batch of a microbatch model is refused: all rows would come in each batch.
#}
{% macro _whole(relation) -%}
    {%- if relation.event_time_filter is not defined or not relation.event_time_filter -%}
        {{ relation }}
    {%- elif model.config.materialized == 'incremental' and model.config.incremental_strategy == 'microbatch' -%}
        {{ reverse_etl._view_refuse(
            relation.render(), 'one batch of a microbatch model, so a part of its changes', 'all of them, for the rows of a snapshot follow from all',
            'give the model another incremental_strategy, or read the changes of a batch: reverse_etl.changes(...)'
        ) }}
    {%- else -%}
        {{ relation.replace(event_time_filter=none) }}
    {%- endif -%}
{%- endmacro %}


{#
  The image that the rows which pass `until` lead to: the last row of each key, unless it is a delete.
  A checkpoint repeats the image after the changes of its own snapshot, so it is sorted behind them.
  `at` picks the snapshots whose image it is: an error where one was pruned. The image of a savepoint counts there and nowhere else, so that
  no key which dies after it rises again once its delete is pruned.
    rows     the relation with columns of its own for these conditions, `helpers`
#}
{% macro _view_image(relation, key, columns, until='true', at=none, rows=none, helpers=[]) -%}
(
    select {{ reverse_etl._view_columns(columns, ['_reverse_etl_next'] + helpers) }}
    from (
        select *, lead(_snapshot_id) over (partition by {{ reverse_etl._key(relation, key) }} order by _snapshot_id, _change = 'checkpoint') as _reverse_etl_next
        from {{ rows or reverse_etl._whole(relation) }}
        where
            {%- if at %} case _change when 'pruned' then {{ reverse_etl._refuse_pruned(at) }} when 'savepoint' then {{ at }}
            else _change in ('insert', 'update_postimage', 'delete', 'checkpoint') end
            {%- else %} _change in ('insert', 'update_postimage', 'delete', 'checkpoint') {%- endif %}
            and {{ until }}
    )
    where _reverse_etl_next is null and _change <> 'delete'
)
{%- endmacro %}


{#
  The rows that say how a key stands from their snapshot on. A checkpoint repeats what stands, after the changes of its own snapshot; as a column,
  so that windows over windows see one order and sort once.
#}
{% macro _view_versions(relation) -%}
(
    select *, _change = 'checkpoint' as _reverse_etl_repeats
    from {{ reverse_etl._whole(relation) }}
    where _change in ('insert', 'update_postimage', 'delete', 'checkpoint')
)
{%- endmacro %}


{# The change rows of the snapshots after `from_snapshot`, up to and including `to_snapshot`; an error where one of them was pruned. Without either: of all that are kept. #}
{% macro _view_range(from_snapshot, to_snapshot) -%}
    {%- set start = reverse_etl._view_snapshot_id(0 if from_snapshot is none else from_snapshot, 'from_snapshot') -%}
    {%- set end = none if to_snapshot is none else reverse_etl._view_snapshot_id(to_snapshot, 'to_snapshot') -%}
    {#- In these, the newest snapshot of what dbt does not list is 0. -#}
    {%- if end is not none and end | int < start | int and (end | int or flags.WHICH not in ('compile', 'generate')) -%}
        {#- A reset begins its ids at 1 again: a model that knows its place by them would miss what comes until they have passed it. -#}
        {{ reverse_etl._view_refuse(
            'from_snapshot', start ~ ', later than to_snapshot ' ~ end, 'the older one first',
            'exchange them, or, where the changelog was reset, build the model with --full-refresh'
        ) }}
    {%- endif -%}
    {%- set range -%}
        _snapshot_id > {{ start }}{% if end is not none %} and _snapshot_id <= {{ end }}{% endif -%}
    {%- endset -%}
    {%- set changed = "_change in ('insert', 'update_preimage', 'update_postimage', 'delete')" -%}
    {{ range }} and {% if from_snapshot is not none or to_snapshot is not none -%} case when _change = 'pruned' then {{ reverse_etl._refuse_pruned(range) }} else {{ changed }} end {%- else -%} {{ changed }} {%- endif -%}
{%- endmacro %}


{# A snapshot id as a literal: only against literals does Delta skip files. #}
{% macro _view_snapshot_id(value, argument) -%}
    {%- if value is integer and value >= 0 or value is string and value.isdigit() and value | int(-1) >= 0 -%}
        {{ value | int }}
    {%- else -%}
        {{ reverse_etl._view_refuse(
            argument, "'" ~ value ~ "'", 'a snapshot id, a whole number from 0', 'take one from reverse_etl.snapshots(...)'
        ) }}
    {%- endif -%}
{%- endmacro %}


{# While dbt parses, values that come from queries are not there yet, so only what is executed is refused. #}
{% macro _view_refuse(where, found, expected, next_step) -%}
    {%- if execute is not defined or execute -%}
        {{ exceptions.raise_compiler_error(where ~ ': found ' ~ found ~ '; expected ' ~ expected ~ '. Next: ' ~ next_step) }}
    {%- endif -%}
{%- endmacro %}
