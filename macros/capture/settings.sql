{# What a changelog model may say. Whatever would be ignored is refused. #}
{% macro _changelog_settings() %}
    {%- set given = config.get('meta', {}).get('reverse_etl', {}) -%}
    {%- set choices = {
        'capture': ['compare'],
        'compare': ['hash', 'except'],
        'on_bad_key': ['fail', 'quarantine'],
        'on_column_change': ['append_new_columns', 'fail', 'sync_all_columns'],
    } -%}
    {%- set problems = [] -%}
    {%- for name, value in given.items() -%}
        {%- if name not in choices -%}
            {%- do problems.append('meta.reverse_etl.' ~ name ~ ': not a setting of a changelog; expected one of ' ~ choices | join(', ')) -%}
        {%- elif value not in choices[name] -%}
            {%- do problems.append('meta.reverse_etl.' ~ name ~ ": found '" ~ value ~ "'; expected one of " ~ choices[name] | join(', ')) -%}
        {%- endif -%}
    {%- endfor -%}
    {%- set unique_key = config.get('unique_key') -%}
    {%- set key = [unique_key] if unique_key is string else (unique_key or []) -%}
    {%- if not key -%}
        {%- do problems.append("unique_key: none found; expected a column or a list of columns; add unique_key='...' to config()") -%}
    {%- endif -%}
    {%- do problems.extend(reverse_etl._ignored_configs()) -%}
    {%- if problems -%}
        {{ exceptions.raise_compiler_error('changelog ' ~ model.name ~ ':\n  ' ~ problems | join('\n  ')) }}
    {%- endif -%}
    {{ return({
        'key': key,
        'compare': given.get('compare', 'hash'),
        'on_bad_key': given.get('on_bad_key', 'fail'),
        'on_column_change': given.get('on_column_change', 'append_new_columns'),
    }) }}
{% endmacro %}


{% macro _ignored_configs() %}
    {%- set honoured = [
        'materialized', 'unique_key', 'contract', 'grants', 'persist_docs', 'pre-hook', 'post-hook', 'tblproperties', 'location_root',
        'alias', 'schema', 'database', 'tags', 'meta', 'enabled', 'docs', 'group', 'access', 'quoting', 'packages', 'full_refresh', 'freshness',
        'event_time', 'static_analysis',
    ] -%}
    {%- set defaults = {'on_schema_change': 'ignore', 'on_configuration_change': 'apply', 'batch_size': none, 'lookback': 1, 'file_format': 'delta'} -%}
    {%- set instead = {
        'on_schema_change': 'use meta.reverse_etl.on_column_change',
        'partition_by': 'a changelog is clustered by _snapshot_id',
        'clustered_by': 'a changelog is clustered by _snapshot_id',
        'incremental_strategy': 'a changelog is append-only',
        'file_format': 'a changelog is a Delta table',
    } -%}
    {%- set problems = [] -%}
    {%- for name, value in model.config.items() -%}
        {%- if name not in honoured and value and value != defaults.get(name) -%}
            {%- do problems.append(name ~ ": has no meaning for a changelog; expected it to be absent; " ~ instead.get(name, 'remove it') ) -%}
        {%- endif -%}
    {%- endfor -%}
    {%- for column in model.columns.values() if column.get('constraints') -%}
        {%- do problems.append('constraint on column ' ~ column.name ~ ': a changelog also holds deletes and a header row; expected no constraints; use the tests reverse_etl.current_not_null and current_unique') -%}
    {%- endfor -%}
    {%- if model.get('constraints') -%}
        {%- do problems.append('constraints: a changelog also holds deletes and a header row; expected no constraints; put them on the model that it reads') -%}
    {%- endif -%}
    {{ return(problems) }}
{% endmacro %}
