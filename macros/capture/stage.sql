{# The stage: the uncommitted changes, in a table named by the capture. #}

{% macro _stage_relation(target, capture_uuid) %}
    {{ return(target.incorporate(path={'identifier': target.identifier ~ '__uncommitted_' ~ capture_uuid[:12]}, type='table')) }}
{% endmacro %}


{% macro _stage_counts(stage) %}
    {%- set counts = {'inserts': 0, 'updates': 0, 'deletes': 0, 'null_keys': 0, 'duplicate_keys': 0} -%}
    {%- for row in run_query('select _stage, count(*) from ' ~ stage ~ ' group by _stage').rows -%}
        {%- do counts.update({row[0] ~ 's': row[1] | int}) -%}
    {%- endfor -%}
    {{ return(counts) }}
{% endmacro %}


{# NULL and duplicate keys: fail, or keep them out and record why. The rows stand in <changelog>__bad_keys either way. #}
{% macro _check_keys(target, stage, counts, settings) %}
    {%- set bad_keys = target.incorporate(path={'identifier': target.identifier ~ '__bad_keys'}, type='table') -%}
    {%- set existing = load_cached_relation(bad_keys) -%}
    {%- if not counts.null_keys + counts.duplicate_keys -%}
        {%- if existing is not none -%}{%- do adapter.drop_relation(existing) -%}{%- endif -%}
        {{ return([]) }}
    {%- endif -%}
    {%- call statement('bad_keys') -%}
        create or replace table {{ bad_keys }} using delta as
        select _stage as _reason, * except (_stage, _row_hash, _old_snapshot_id) from {{ stage }} where _stage in ('null_key', 'duplicate_key')
    {%- endcall -%}
    {%- if settings.on_bad_key == 'fail' -%}
        {%- do adapter.drop_relation(stage) -%}
        {{ exceptions.raise_compiler_error(
            'changelog ' ~ target ~ ': found ' ~ counts.null_keys ~ ' rows with a NULL key and ' ~ counts.duplicate_keys ~ ' rows that share their key (' ~ settings.key | join(', ')
            ~ '); expected each key once; nothing was captured. Next: select * from ' ~ bad_keys ~ ', correct the model, or set meta.reverse_etl.on_bad_key: quarantine'
        ) }}
    {%- endif -%}
    {%- set listed = run_query(
        "select to_json(array_sort(collect_list(named_struct('key', _key, 'reason', _reason, 'row_count', row_count)))) from (select "
        ~ reverse_etl._key_json(settings.key) ~ ' as _key, _reason, count(*) as row_count from ' ~ bad_keys ~ ' group by all order by 1 limit 1000)'
    ).rows[0][0] -%}
    {{ return(fromjson(listed)) }}
{% endmacro %}
