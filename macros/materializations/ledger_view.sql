{# A view that is made anew only where its SQL changed: its digest is among the view's properties, which dbt has read already. #}
{% materialization ledger_view, adapter='spark', supported_languages=['sql'] %}
    {%- set target = this.incorporate(type='view') -%}
    {%- set existing = load_cached_relation(target) -%}
    {%- set digest = local_md5(compiled_code ~ reverse_etl._wanted_docs()) -%}

    {{ run_hooks(pre_hooks) }}
    {#- With --empty the SQL reads no row of the ledger: a view of it would stay so. -#}
    {%- if existing is not none and existing.is_view and (digest in (existing.information or '') or reverse_etl._is_partial()) -%}
        {%- do store_raw_result(name='main', message='present', code='', rows_affected=0, agate_table=none) -%}
    {%- else -%}
        {%- if existing is not none and not existing.is_view -%}{%- do adapter.drop_relation(existing) -%}{%- endif -%}
        {%- call statement('main') -%}
            create or replace view {{ target }} {{ reverse_etl._commented_columns(compiled_code) }}
            {{ comment_clause() }}
            tblproperties ('reverse_etl.sql' = '{{ digest }}')
            as {{ compiled_code }}
        {%- endcall -%}
    {%- endif -%}
    {%- do apply_grants(target, config.get('grants'), should_revoke=should_revoke(existing, full_refresh_mode=false)) -%}
    {{ run_hooks(post_hooks) }}

    {{ return({'relations': [target]}) }}
{% endmaterialization %}


{# The columns of a view with their descriptions, if `persist_docs` asks for them: Spark comments a column of a view nowhere else. #}
{% macro _commented_columns(query) -%}
    {%- if config.persist_column_docs() -%}
    (
        {%- for name in get_columns_in_query(query) %}
        {{ reverse_etl._quote(name) }}{% if name in model.columns %} comment {{ reverse_etl._string(model.columns[name].description) }}{% endif %}{{ ',' if not loop.last }}
        {%- endfor %}
    )
    {%- endif -%}
{%- endmacro %}
