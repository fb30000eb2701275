{#
  The change feed of the one Delta table whose rows the model reads, each for itself.
    table  something that the model depends on, with delta.enableChangeDataFeed
    key    {column of unique_key: column of that table}; default: the same names
  Where the feed may not tell the changes, or can no longer be read, everything is compared.
#}
{% macro capture_cdf(capture) %}
    {%- set table = reverse_etl._input(capture, 'table') -%}
    {%- set feed = reverse_etl._delta_feed(table, (capture.since or {}).get('cdf', ''), 'capture.table') -%}
    {%- set candidates -%}
        select {{ reverse_etl._key_from(capture.columns.key, capture.options.key) }} from {{ feed.changes or table ~ ' where false' }}
    {%- endset -%}
    {#- Later a wrong key would look like a feed that cannot be read. -#}
    {%- if not capture.since -%}{%- do reverse_etl._check_columns_read(capture, table) -%}{%- endif -%}
    {{ return({'problem': feed.problem, 'positions': {'cdf': feed.position}, 'candidates': candidates if not feed.problem else none, 'unreadable': feed.unreadable}) }}
{% endmacro %}


{#
  How far a Delta table has come, and what changed in it after the position that is known: {position, problem: why the changes are not known,
  changes: all images of the changed rows, behind `from`, or none where nothing changed; unreadable: why, where they cannot be read: VACUUM and the retention
  of the log may have removed files, and the history does not show it}.
  A position is version:seconds#hash: seconds since 1970, the same in every time zone; the hash is of the columns and their types. An earlier build left it out.
#}
{% macro _delta_feed(table, known, option) %}
    {%- if not known -%}{%- do reverse_etl._expect_delta(table, option) -%}{%- endif -%}
    {#- A cache of the session may hold older rows than the version that is noted. In Databricks the statement would run the pipeline of a table that has one. -#}
    {%- if target.type != 'databricks' -%}{%- do run_query('refresh table ' ~ table) -%}{%- endif -%}
    {#- The columns first: those of a later version are then seen to be others the next time. -#}
    {%- set columns = local_md5(tojson(reverse_etl._columns_of(table))) -%}
    {%- set newest = reverse_etl._delta_commits(table, 1)[0] -%}
    {%- set at, _, columns_then = known.partition('#') -%}
    {#- A version of the same time is the same one: that of a table that was made anew has another. -#}
    {%- if newest.position == at -%}{{ return({'position': at ~ '#' ~ (columns_then or columns), 'problem': none, 'changes': none, 'unreadable': none}) }}{%- endif -%}
    {%- set read = at.split(':')[0] | int -%}
    {%- set problem = reverse_etl._cdf_problem(table, at, newest.version) -%}
    {#- Values that are computed from a column may change with its type, and no row of it does. -#}
    {%- if not problem and columns_then not in ['', columns] -%}{%- set problem = 'a column of ' ~ table ~ ' is new or has another type' -%}{%- endif -%}
    {%- set changes = '(select * from table_changes(' ~ reverse_etl._string(table | string) ~ ', ' ~ (read + 1) ~ ', ' ~ newest.version ~ '))' -%}
    {{ return({
        'position': newest.position ~ '#' ~ columns, 'problem': problem, 'changes': none if problem else changes,
        'unreadable': 'the change feed of ' ~ table ~ ' after version ' ~ read ~ ' cannot be read: its files are gone, a right is missing, or the columns changed',
    }) }}
{% endmacro %}


{% macro _expect_delta(table, option) %}
    {%- set found = run_query('describe detail ' ~ table).rows[0]['format'] -%}
    {%- if found != 'delta' -%}
        {{ exceptions.raise_compiler_error('changelog ' ~ model.name ~ ': ' ~ option ~ ': found ' ~ table ~ ' as ' ~ found ~ '; expected a Delta table; use another strategy') }}
    {%- endif -%}
{% endmacro %}


{# The newest commits of a Delta table, the newest first: [{version, time, position, operation, parameters}] #}
{% macro _delta_commits(table, most) %}
    {%- set commits = [] -%}
    {%- for row in run_query('describe history ' ~ table ~ ' limit ' ~ most).rows -%}
        {%- do commits.append({
            'version': row['version'] | int, 'time': row['timestamp'], 'position': row['version'] ~ ':' ~ row['timestamp'].timestamp(),
            'operation': row['operation'], 'parameters': row['operationParameters'] | string,
        }) -%}
    {%- endfor -%}
    {{ return(commits) }}
{% endmacro %}


{# Why the feed from the version after the known one on does not tell the changes; or none. #}
{% macro _cdf_problem(table, known, newest) %}
    {%- if not known -%}{{ return('the feed of ' ~ table ~ ' was not read before') }}{%- endif -%}
    {%- set read = known.split(':', 1)[0] | int -%}
    {%- if newest < read -%}{{ return(table ~ ' was made anew') }}{%- endif -%}
    {#- From that version on: of equal times in a list Delta shows later ones, but for the first. Others may write meanwhile. -#}
    {%- set commits = reverse_etl._delta_commits(table, newest - read + 1) -%}
    {%- if commits[-1].version > read -%}{%- set commits = reverse_etl._delta_commits(table, commits[0].version - read + 1) -%}{%- endif -%}
    {%- set commits = commits | rejectattr('version', 'gt', newest) | list -%}
    {%- if commits[-1].version != read -%}{{ return('the history of ' ~ table ~ ' begins after version ' ~ read) }}{%- endif -%}
    {%- if commits[-1].position != known -%}{{ return(table ~ ' was made anew') }}{%- endif -%}
    {%- set properties = reverse_etl._table_properties(table) -%}
    {%- if properties.get('delta.enableChangeDataFeed') | string | lower != 'true' -%}{{ return(table ~ ' has no change data feed; set delta.enableChangeDataFeed') }}{%- endif -%}
    {%- for commit in commits[:-1] -%}
        {%- set untold = reverse_etl._cdf_untold(commit) -%}
        {%- if untold -%}{{ return(table ~ ' had ' ~ untold ~ ' in version ' ~ commit.version) }}{%- endif -%}
    {%- endfor -%}
    {%- set retention = reverse_etl._retention(properties) -%}
    {%- set kept_from = run_query('select current_timestamp() - ' ~ retention).rows[0][0] -%}
    {%- if commits[-2].time < kept_from -%}{{ return('version ' ~ commits[-2].version ~ ' of ' ~ table ~ ' is older than its retention, ' ~ retention) }}{%- endif -%}
    {{ return(none) }}
{% endmacro %}


{# What a commit did that the feed may not tell; or none. #}
{% macro _cdf_untold(commit) %}
    {%- set told = [
        'WRITE', 'STREAMING UPDATE', 'MERGE', 'UPDATE', 'DELETE', 'OPTIMIZE', 'REORG', 'VACUUM START', 'VACUUM END', 'SET TBLPROPERTIES', 'UNSET TBLPROPERTIES',
        'ADD CONSTRAINT', 'DROP CONSTRAINT', 'CLUSTER BY', 'COMPUTE STATS',
    ] -%}
    {%- if commit.operation not in told -%}{{ return(commit.operation) }}{%- endif -%}
    {%- if commit.operation in ('WRITE', 'STREAMING UPDATE') and '"Append"' not in commit.parameters -%}
        {{ return(commit.operation ~ (' ' ~ dict(fromjson(commit.parameters)).get('mode', '') if commit.operation == 'WRITE' else '')) }}
    {%- endif -%}
    {%- if 'TBLPROPERTIES' in commit.operation and 'enableChangeDataFeed' in commit.parameters -%}{{ return('its change data feed switched') }}{%- endif -%}
    {{ return(none) }}
{% endmacro %}
