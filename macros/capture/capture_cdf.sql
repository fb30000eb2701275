{#
  The change feed of the one Delta table whose rows the model reads, each for itself.
    table  something that the model depends on, with delta.enableChangeDataFeed
    key    {column of unique_key: column of that table}; default: the same names
  Where the feed may not tell the changes, or can no longer be read, everything is compared.
#}
{% macro capture_cdf(capture) %}
    {%- set table = reverse_etl._input(capture, 'table') -%}
    {%- set feed = reverse_etl._delta_feed(table, (capture.since or {}).get('cdf', ''), capture.since, 'capture.table') -%}
    {%- set candidates -%}
        select distinct {{ reverse_etl._key_from(capture.columns.key, capture.options.key) }} from {{ feed.changes or table ~ ' where false' }}
    {%- endset -%}
    {{ return({'problem': feed.problem, 'positions': {'cdf': feed.position}, 'candidates': candidates if capture.since and not feed.problem else none}) }}
{% endmacro %}


{#
  How far a Delta table has come, and what changed in it after the position that is known: {position: id:version:time of that version, problem: why the
  changes are not known, changes: all images of the changed rows, behind `from`, or none where nothing changed}
#}
{% macro _delta_feed(table, known, is_known, option) %}
    {%- set read = known.split(':', 2) -%}
    {#- A version of the same time is the same one, so that nothing happened. -#}
    {%- if is_known and read | length == 3 and reverse_etl._delta_version(table) == read[1:] | join(':') -%}
        {{ return({'position': known, 'problem': none, 'changes': none}) }}
    {%- endif -%}
    {#- First whose versions they are: those of a table that is made anew meanwhile belong to another id, and everything is compared. -#}
    {%- set detail = reverse_etl._delta_detail(table, option) -%}
    {%- set version = reverse_etl._delta_version(table) -%}
    {%- set newest = version.split(':')[0] | int -%}
    {%- set problem = reverse_etl._cdf_problem(table, read, detail, newest) if is_known else none -%}
    {%- set changes -%} {%- if is_known and not problem and newest > read[1] | int -%}
        (select * from table_changes({{ reverse_etl._string(table | replace('`', '')) }}, {{ read[1] | int + 1 }}, {{ newest }}))
    {%- endif -%} {%- endset -%}
    {{ return({'position': detail.id ~ ':' ~ version, 'problem': problem, 'changes': changes | trim or none}) }}
{% endmacro %}


{# version:time of the newest commit #}
{% macro _delta_version(table) %}
    {%- set commit = run_query('describe history ' ~ table ~ ' limit 1').rows[0] -%}
    {{ return(commit['version'] ~ ':' ~ commit['timestamp']) }}
{% endmacro %}


{# {id, properties}. A map comes as the JSON text of a mapping or, from Databricks, of pairs. #}
{% macro _delta_detail(table, option) %}
    {%- set found = run_query('describe detail ' ~ table) -%}
    {%- set detail = {} -%}
    {%- for name in found.column_names -%}{%- do detail.update({name: found.rows[0][name]}) -%}{%- endfor -%}
    {%- if detail.format != 'delta' -%}
        {{ exceptions.raise_compiler_error('changelog ' ~ model.name ~ ': ' ~ option ~ ': found ' ~ table ~ ' as ' ~ detail.format ~ '; expected a Delta table; use another strategy') }}
    {%- endif -%}
    {{ return({'id': detail.id, 'properties': dict(fromjson(detail.properties))}) }}
{% endmacro %}


{# Why the feed from the version after `read` (id, version, its time) on does not tell the changes; or none. #}
{% macro _cdf_problem(table, read, detail, newest) %}
    {%- if read | length < 2 -%}{{ return('the feed of ' ~ table ~ ' was not read before') }}{%- endif -%}
    {%- if detail.id != read[0] or newest < read[1] | int -%}{{ return(table ~ ' was made anew') }}{%- endif -%}
    {%- if detail.properties.get('delta.enableChangeDataFeed') != 'true' -%}{{ return(table ~ ' has no change data feed; set delta.enableChangeDataFeed') }}{%- endif -%}
    {%- set missed = newest - read[1] | int -%}
    {%- if not missed -%}{{ return(none) }}{%- endif -%}
    {%- set versions = run_query('describe history ' ~ table ~ ' limit ' ~ missed).rows -%}
    {%- set told = [
        'WRITE', 'STREAMING UPDATE', 'MERGE', 'UPDATE', 'DELETE', 'OPTIMIZE', 'REORG', 'VACUUM START', 'VACUUM END', 'SET TBLPROPERTIES', 'UNSET TBLPROPERTIES',
        'ADD CONSTRAINT', 'DROP CONSTRAINT', 'CLUSTER BY', 'COMPUTE STATS',
    ] -%}
    {%- for version in versions -%}
        {%- set parameters = version['operationParameters'] | string -%}
        {%- if version['operation'] not in told or version['operation'] in ('WRITE', 'STREAMING UPDATE') and '"Append"' not in parameters -%}
            {{ return(table ~ ' had ' ~ version['operation'] ~ (' ' ~ dict(fromjson(parameters)).get('mode', '') if version['operation'] == 'WRITE' else '') ~ ' in version ' ~ version['version']) }}
        {%- endif -%}
        {%- if 'TBLPROPERTIES' in version['operation'] and 'enableChangeDataFeed' in parameters -%}
            {{ return('the change data feed of ' ~ table ~ ' was switched in version ' ~ version['version']) }}
        {%- endif -%}
    {%- endfor -%}
    {%- if versions | length < missed -%}{{ return('the history of ' ~ table ~ ' begins after version ' ~ read[1]) }}{%- endif -%}
    {%- set retention = detail.properties.get('delta.deletedFileRetentionDuration', '1 week') | lower -%}
    {%- set kept_from = run_query('select current_timestamp() - interval ' ~ retention | replace('interval', '')).rows[0][0] -%}
    {%- if versions[-1]['timestamp'] < kept_from -%}{{ return('version ' ~ versions[-1]['version'] ~ ' of ' ~ table ~ ' is older than its retention, ' ~ retention) }}{%- endif -%}
    {{ return(none) }}
{% endmacro %}
