{# An append-only Delta table with the columns of the model: created if absent, never replaced, not even by --full-refresh. #}
{% materialization ledger, adapter='spark', supported_languages=['sql'] %}
    {%- set target = this.incorporate(type='table') -%}
    {%- set existing = load_cached_relation(target) -%}

    {{ run_hooks(pre_hooks) }}
    {%- if existing is none or existing.is_view -%}
        {#- What a `+materialized: view` left, before it was refused. -#}
        {%- if existing is not none -%}{%- do adapter.drop_relation(existing) -%}{%- endif -%}
        {%- call statement('main') -%}
            {{ reverse_etl._create_ledger(target, compiled_code, reverse_etl._location_clause(), comment_clause()) }}
        {%- endcall -%}
        {%- do reverse_etl._persist_docs(target) -%}
    {%- else -%}
        {%- do store_raw_result(name='main', message='present', code='', rows_affected=0, agate_table=none) -%}
    {%- endif -%}
    {%- do apply_grants(target, config.get('grants'), should_revoke=should_revoke(existing, full_refresh_mode=false)) -%}
    {{ run_hooks(post_hooks) }}

    {{ return({'relations': [target]}) }}
{% endmaterialization %}
