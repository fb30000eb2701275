{# What a model says for this package, of its configuration or that of its node. YAML reads a key without a value as NULL. #}
{% macro _own_block(config) %}{{ return((config.get('meta') or {}).get('reverse_etl') or {}) }}{% endmacro %}


{# What a changelog model may say. Whatever would be ignored is refused. #}
{% macro _changelog_settings() %}
    {%- set given = reverse_etl._own_block(config) -%}
    {%- set choices = {
        'compare': ['hash', 'except'],
        'on_bad_key': ['fail', 'quarantine'],
        'on_column_change': ['append_new_columns', 'fail', 'sync_all_columns'],
    } -%}
    {%- set problems = [] -%}
    {%- set capture = reverse_etl._capture_settings(given.get('capture', 'compare'), problems) -%}
    {%- set label = reverse_etl._label_settings(given.get('label'), problems) -%}
    {%- for name, value in given.items() if name not in ['capture', 'label', 'wide_table', 'publish'] -%}
        {%- if name not in choices -%}
            {%- do problems.append('meta.reverse_etl.' ~ name ~ ': not a setting of a changelog; expected one of capture, label, wide_table, publish, ' ~ choices | join(', ')) -%}
        {%- elif value not in choices[name] -%}
            {%- do problems.append('meta.reverse_etl.' ~ name ~ ": found '" ~ value ~ "'; expected one of " ~ choices[name] | join(', ')) -%}
        {%- endif -%}
    {%- endfor -%}
    {%- if 'publish' in given and (given.publish is not string or not given.publish.strip() or given.publish | lower == model.alias | lower) -%}
        {%- do problems.append("meta.reverse_etl.publish: found '" ~ given.publish ~ "'; expected the name of a view beside the changelog; correct it") -%}
    {%- elif 'publish' in given and reverse_etl._taken_by_another(model, given.publish) -%}
        {%- do problems.append("meta.reverse_etl.publish: found '" ~ given.publish ~ "', the name of " ~ reverse_etl._taken_by_another(model, given.publish) ~ '; expected a name of its own; take another one') -%}
    {%- endif -%}
    {%- if given.get('compare') == 'except' and capture.strategy != 'compare' -%}
        {%- do problems.append('meta.reverse_etl.compare: found except with the strategy ' ~ capture.strategy ~ '; expected hash, for EXCEPT compares everything; remove one of them') -%}
    {%- endif -%}
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
        'capture': capture,
        'label': label,
        'only_captured': ([capture.get('deleted'), capture.get('operation')] + (['_topic', '_partition', '_offset', '_file_modified'] if capture.get('strategy') == 'feed' else [])) | reject('equalto', capture.get('sequence')) | list,
        'compare': given.get('compare', 'hash'),
        'on_bad_key': given.get('on_bad_key', 'fail'),
        'on_column_change': given.get('on_column_change', 'append_new_columns'),
    }) }}
{% endmacro %}


{# What else of the schema of a model has a name, or publishes under it; empty: nothing, or a view, which publish replaces. #}
{% macro _taken_by_another(model, name) %}
    {%- for node in graph.nodes.values() if node.unique_id != model.unique_id and node.resource_type in ['model', 'seed', 'snapshot'] and [node.database or '', node.schema] == [model.database or '', model.schema] -%}
        {%- if name | lower in [node.alias | lower, (reverse_etl._own_block(node.config).get('publish') or '' if node.config.get('materialized') == 'changelog' else '') | lower] -%}
            {{ return(node.unique_id) }}
        {%- endif -%}
    {%- endfor -%}
    {%- for node in graph.sources.values() if node.schema == model.schema and node.identifier | lower == name | lower -%}{{ return(node.unique_id) }}{%- endfor -%}
    {%- set existing = adapter.get_relation(database=model.database, schema=model.schema, identifier=name) -%}
    {{ return(existing ~ ', a ' ~ existing.type if existing is not none and existing.type != 'view' else '') }}
{% endmacro %}


{#
  capture: the name of a strategy, or a mapping with `strategy`, its own options (see capture_<strategy>) and those of all:
    full_compare_every  every so many captures compare everything
    on_drift         warn, or fail: what a reconcile does when it found changes that were not proposed (they are captured either way)
    recapture_by     columns: when a row changed, all rows with the same values are compared
    full_above       share of the rows above which candidates are not worth it
#}
{% macro _capture_settings(given, problems) %}
    {%- set capture = {'strategy': given} if given is string else {} -%}
    {%- if given is mapping -%}{%- do capture.update(given) -%}{%- endif -%}
    {%- set required = {'compare': [], 'timestamp': ['updated_at'], 'change_table': ['table', 'sequence'], 'cdf': ['table'], 'affected_keys': [], 'feed': ['operation', 'sequence']} -%}
    {%- set optional = {'compare': [], 'timestamp': ['overlap', 'deleted'], 'change_table': ['overlap', 'key'], 'cdf': ['key'], 'affected_keys': ['recompute'], 'feed': ['operations', 'overlap']} -%}
    {%- set of_all = [] if capture.strategy == 'compare' else ['full_above'] if capture.strategy == 'feed' else ['full_compare_every', 'on_drift', 'recapture_by', 'full_above'] -%}
    {%- set strategy = capture.get('strategy') -%}
    {%- if strategy not in required and 'capture_' ~ strategy not in context -%}
        {%- do problems.append("meta.reverse_etl.capture: found '" ~ strategy ~ "'; expected strategy: " ~ required | join(', ') ~ ', or a macro capture_' ~ strategy ~ ' in this project') -%}
    {%- elif strategy in required -%}
        {%- for name in required[strategy] if not capture.get(name) -%}
            {%- do problems.append('meta.reverse_etl.capture.' ~ name ~ ': not found; expected it with the strategy ' ~ strategy ~ '; add it') -%}
        {%- endfor -%}
        {%- for name in capture if name not in ['strategy'] + required[strategy] + optional[strategy] + of_all -%}
            {%- set found, then = 'no option of the strategy ' ~ strategy ~ '; expected one of ' ~ (required[strategy] + optional[strategy] + of_all) | join(', '), 'remove it' -%}
            {%- if name == 'reconcile_every' -%}{%- set found, then = 'found the former name of full_compare_every; expected full_compare_every', 'rename it' -%}{%- endif -%}
            {%- do problems.append('meta.reverse_etl.capture.' ~ name ~ ': ' ~ found ~ '; ' ~ then) -%}
        {%- endfor -%}
    {%- endif -%}
    {%- if strategy == 'affected_keys' and capture.get('recompute', 'full') not in ['full', 'affected'] -%}
        {%- do problems.append("meta.reverse_etl.capture.recompute: found '" ~ capture.recompute ~ "'; expected full or affected; correct it") -%}
    {%- endif -%}
    {%- if capture.get('on_drift', 'warn') not in ['warn', 'fail'] -%}
        {%- do problems.append("meta.reverse_etl.capture.on_drift: found '" ~ capture.on_drift ~ "'; expected warn or fail") -%}
    {%- endif -%}
    {%- if capture.get('full_compare_every') and not (capture.full_compare_every is integer and capture.full_compare_every > 0) -%}
        {%- do problems.append("meta.reverse_etl.capture.full_compare_every: found '" ~ capture.full_compare_every ~ "'; expected a number of captures, 1 or more") -%}
    {%- endif -%}
    {%- set share = capture.get('full_above', 0.25) -%}
    {%- if share is boolean or share is not number or not 0 < share <= 1 -%}
        {%- do problems.append("meta.reverse_etl.capture.full_above: found '" ~ share ~ "'; expected a number, more than 0 and at most 1; correct it") -%}
    {%- endif -%}
    {%- set read_again = capture.get('overlap', 1000 if strategy == 'change_table' else none) -%}
    {%- if strategy == 'change_table' and not (read_again is integer and read_again >= 0) -%}
        {%- do problems.append("meta.reverse_etl.capture.overlap: found '" ~ read_again ~ "'; expected a whole number of values of the sequence, 0 or more; correct it") -%}
    {%- endif -%}
    {%- if strategy == 'feed' -%}{%- do problems.extend(reverse_etl._operations_problems(capture.get('operations'))) -%}{%- endif -%}
    {%- set together = capture.get('recapture_by') -%}
    {%- do capture.update({
        'strategy': strategy, 'full_above': share, 'recapture_by': [together] if together is string else together,
        'overlap': read_again,
    }) -%}
    {{ return(capture) }}
{% endmacro %}


{# Of a word in no list that counts, a delete would become an upsert. #}
{% macro _operations_problems(given) %}
    {%- set problems, where = [], 'meta.reverse_etl.capture.operations' -%}
    {%- if given is not none and given is not mapping -%}
        {%- do problems.append(where ~ ": found '" ~ given ~ "'; expected {upsert: [...], delete: [...], ignore: [...]}; correct it") -%}
    {%- endif -%}
    {%- for name, values in (given.items() if given is mapping else []) -%}
        {%- if name not in ['upsert', 'delete', 'ignore'] -%}
            {%- do problems.append(where ~ ": found '" ~ name ~ "'; expected one of upsert, delete, ignore; correct it") -%}
        {%- elif values is string or values is mapping or values is not sequence -%}
            {%- do problems.append(where ~ '.' ~ name ~ ": found '" ~ values ~ "'; expected a list of values of the operation; write it in [ ]") -%}
        {%- endif -%}
    {%- endfor -%}
    {{ return(problems) }}
{% endmacro %}


{# label: SQL over the columns, or a mapping (see _groups) #}
{% macro _label_settings(given, problems) %}
    {%- if given is none -%}{{ return(none) }}{%- endif -%}
    {%- set label = {'by': given} if given is string else {} -%}
    {%- if given is mapping -%}{%- do label.update(given) -%}{%- endif -%}
    {%- for name in label if name not in ['by', 'grace', 'at', 'late'] -%}
        {%- do problems.append('meta.reverse_etl.label.' ~ name ~ (
            ': found the former name of label.grace; expected grace; rename it' if name == 'drift' else ': not an option of label; expected by, grace, at, late; remove it'
        )) -%}
    {%- endfor -%}
    {%- if not label.get('by') -%}{%- do problems.append('meta.reverse_etl.label.by: not found; expected SQL over the columns of the model; add it') -%}{%- endif -%}
    {%- if 'drift' not in label and (label.get('grace') is none) != (label.get('at') is none) -%}
        {%- do problems.append('meta.reverse_etl.label: found one of grace and at; expected both or neither; grace is measured on the time of the rows') -%}
    {%- endif -%}
    {%- if label.get('late', 'fail') not in ['fail', 'open'] -%}
        {%- do problems.append("meta.reverse_etl.label.late: found '" ~ label.late ~ "'; expected fail or open") -%}
    {%- endif -%}
    {#- A comment at the end would take what comes behind it. -#}
    {%- for name in ['by', 'at'] if '--' in label.get(name, '') | string -%}{%- do label.update({name: label[name] ~ '\n'}) -%}{%- endfor -%}
    {{ return({'by': label.get('by'), 'grace': label.get('grace'), 'at': label.get('at'), 'late': label.get('late', 'fail'), 'known_to': none}) }}
{% endmacro %}


{% macro _ignored_configs() %}
    {%- set honoured = [
        'materialized', 'unique_key', 'contract', 'grants', 'persist_docs', 'pre-hook', 'post-hook', 'tblproperties', 'location_root',
        'alias', 'schema', 'database', 'tags', 'meta', 'enabled', 'docs', 'group', 'access', 'quoting', 'packages', 'full_refresh', 'freshness',
        'event_time', 'static_analysis', 'on_error', 'latest_version_pointer',
    ] + (['query_tags', 'databricks_compute', 'catalog_name', 'include_full_name_in_path'] if target.type == 'databricks' else []) -%}
    {%- set defaults = {'on_schema_change': 'ignore', 'on_configuration_change': 'apply', 'batch_size': none, 'lookback': 1, 'file_format': 'delta'} -%}
    {%- set instead = {
        'on_schema_change': 'use meta.reverse_etl.on_column_change',
        'partition_by': 'a changelog is clustered by _snapshot_id',
        'clustered_by': 'a changelog is clustered by _snapshot_id',
        'incremental_strategy': 'a changelog is append-only',
        'file_format': 'a changelog is a Delta table',
    } -%}
    {%- set problems = [] -%}
    {%- if config.get('event_time') not in [none, '_captured_at'] -%}
        {%- do problems.append("event_time: found '" ~ config.get('event_time') ~ "'; expected _captured_at, for an update and its pre-image may differ in another column; correct or remove it") -%}
    {%- endif -%}
    {%- for name, value in model.config.items() -%}
        {%- if name not in honoured and value and value != defaults.get(name) -%}
            {#- dbt takes a null for no value of this model. -#}
            {%- do problems.append(name ~ ": has no meaning for a changelog; expected it to be absent; " ~ instead.get(name, 'remove it') ~ "; if dbt_project.yml sets it for other models, too, set it to '" ~ (defaults.get(name) or '') ~ "' for this one") -%}
        {%- endif -%}
    {%- endfor -%}
    {%- for column in model.columns.values() if column.get('constraints') -%}
        {%- do problems.append('constraint on column ' ~ column.name ~ ': a changelog also holds deletes and a header row; expected no constraints; use the tests reverse_etl.current_not_null and current_unique') -%}
    {%- endfor -%}
    {%- for column in model.columns.values() -%}
        {%- for name in ['column_mask', 'databricks_tags'] if column.get(name) -%}
            {%- do problems.append(name ~ ' on column ' ~ column.name ~ ': has no effect on a changelog, which keeps the values that its runner sends; expected none; set it on a table that you build from the changelog, and grant that one') -%}
        {%- endfor -%}
    {%- endfor -%}
    {%- if model.get('constraints') -%}
        {%- do problems.append('constraints: a changelog also holds deletes and a header row; expected no constraints; put them on the model that it reads') -%}
    {%- endif -%}
    {{ return(problems) }}
{% endmacro %}
