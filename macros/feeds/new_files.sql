{#
  The rows of the files that are new in a folder since the last capture, to stand behind `from` in a changelog with the strategy feed: the columns of the
  files, and _file_modified.
    format   csv (with a header), json, parquet, or any other data source of this Spark
    schema   'id bigint, name string': without it Spark infers one, for which there has to be a file
    options  of the data source
    overlap  files that are up to so much older than the newest one are read again: they may have been renamed to their place later
#}
{% macro new_files(path, format='csv', schema=none, options={}, overlap='1 hour') -%}
    {%- if not execute -%}{{ return('(select 1)') }}{%- endif -%}
    {%- for name in options if reverse_etl._is_secret(name) -%}
        {%- do reverse_etl._view_refuse(
            'new_files ' ~ path ~ ': options', name ~ ' with a secret, which would end in logs and in the catalog', 'options without one',
            'remove it here, and ' ~ ('set it where Spark starts, such as ' ~ ('' if name.startswith('spark.') else 'spark.hadoop.') ~ name if 'fs.' in name else 'let the data source find it where it runs, or leave files that need none')
        ) -%}
    {%- endfor -%}
    {%- do reverse_etl._check_overlap(overlap, '_file_modified', 'timestamp', 'new_files ' ~ path) -%}
    {%- set source = reverse_etl._feed_source('new_files') -%}
    {%- if flags.WHICH not in ('run', 'build', 'retry') -%}{{ return('(select * from ' ~ format ~ '.' ~ reverse_etl._quote(path) ~ ')') }}{%- endif -%}
    {%- set place = reverse_etl._landing_place(path, options) -%}
    {%- set since = source.since.get('files/' ~ place) -%}
    {%- set newer -%}
        {%- if not source.reading -%} false {%- elif since is none -%} true
        {%- else -%} _file_modified >= timestamp_micros({{ since | int }}){% if overlap %} - interval {{ reverse_etl._string(overlap) }}{% endif %} {%- endif -%}
    {%- endset -%}
    {%- set checked = format | lower in ('csv', 'json') and reverse_etl._is_mode_ours(path, options) -%}
    {%- if since is none -%}{%- do reverse_etl._check_landing_path(path) -%}{%- endif -%}
    {%- set landing, views = reverse_etl._feed_relation('landing', [path, format, schema, options]), [] -%}
    {%- if format | lower in ('csv', 'json', 'parquet', 'orc', 'avro', 'text', 'xml', 'binaryfile') -%}
        {%- set rows = reverse_etl._landing_rows(landing, path, format, schema, options, checked) -%}
    {%- else -%}
        {%- set rows = reverse_etl._landing_rows_by_file(landing, path, format, schema, options, newer, views) -%}
    {%- endif -%}
    {%- set input = reverse_etl._feed_input('files', [path, format, schema, options],
        'select *, ' ~ reverse_etl._string(place) ~ ' as _input, if(_file_modified <= current_timestamp(), unix_micros(_file_modified), null) as _read_to from ' ~ rows ~ ' where ' ~ newer
    ) -%}
    {%- for relation in ['table if exists ' ~ landing] + views -%}{%- do run_query('drop ' ~ relation) -%}{%- endfor -%}
    {%- if checked -%}{%- do reverse_etl._check_malformed(path, format, input) -%}{%- endif -%}
    {%- if source.reading and since is none -%}{%- do reverse_etl._tell_without_rows(path, input) -%}{%- endif -%}
    {{ return(reverse_etl._feed_rows(input, source.head, ['_malformed'] if checked else [])) }}
{%- endmacro %}


{# Spark finds a relative path below the warehouse for one format, and below its working directory for another. #}
{% macro _check_landing_path(path) %}
    {%- if not modules.re.match('/|[A-Za-z][A-Za-z0-9+.-]*:', path) -%}
        {%- do reverse_etl._view_refuse('new_files ' ~ path, 'a relative path', 'an absolute one; nothing was captured', 'write it as /landing/orders or s3a://bucket/orders') -%}
    {%- endif -%}
{% endmacro %}


{# A folder that does not exist looks like an empty one, also to us: object stores know no empty folders. A warning would fail the capture with --warn-error. #}
{% macro _tell_without_rows(path, input) %}
    {%- if not run_query('select 1 from ' ~ input ~ ' limit 1').rows -%}
        {%- do log('new_files ' ~ path ~ ': found no row, now or before; expected files in this folder. Next: if some are there, correct the path, for one that does not exist looks empty', info=true) -%}
    {%- endif -%}
{% endmacro %}


{# The name of the position: other files of the same folder have another one. #}
{% macro _landing_place(path, options) -%}
    {%- set chosen = [] -%}
    {%- for name, value in options | dictsort -%}
        {%- if name | lower == 'pathglobfilter' -%}{%- do chosen.append('pathGlobFilter=' ~ value) -%}
        {%- elif name | lower == 'recursivefilelookup' and value | string | lower == 'true' -%}{%- do chosen.append('recursiveFileLookup') -%}
        {%- endif -%}
    {%- endfor -%}
    {{ return(path ~ ('?' ~ chosen | join('&') if chosen else '')) }}
{%- endmacro %}


{# Whether we choose what becomes of a row that is none. Errors of FAILFAST quote it, and dbt logs them. #}
{% macro _is_mode_ours(path, options) -%}
    {%- set own = {} -%}
    {%- for name, value in options.items() -%}{%- do own.update({name | lower: value | string | upper}) -%}{%- endfor -%}
    {%- set found = 'the mode FAILFAST, whose errors show rows' if own.get('mode') == 'FAILFAST' else 'columnNameOfCorruptRecord without a mode' if 'columnnameofcorruptrecord' in own and 'mode' not in own -%}
    {%- if found -%}
        {%- do reverse_etl._view_refuse(
            'new_files ' ~ path, found, 'no mode, so that rows which do not fit are counted and refused, or PERMISSIVE or DROPMALFORMED; nothing was captured', 'correct the options'
        ) -%}
    {%- endif -%}
    {{ return('mode' not in own) }}
{%- endmacro %}


{#
  Files that Spark reads itself: a table over the folder, for the moment, because a temporary view hides when a file was modified. Dropping it leaves the files.
  checked: what does not fit the schema, given or inferred, goes into _malformed, to be counted and refused.
#}
{% macro _landing_rows(landing, path, format, schema, options, checked) %}
    {%- set all, ours = {}, {} -%}
    {%- if format | lower == 'csv' -%}{%- do ours.update({'header': 'true', 'enforceSchema': 'false'}) -%}{%- endif -%}
    {%- if checked -%}{%- do ours.update({'columnNameOfCorruptRecord': '_malformed'}) -%}
    {%- elif format | lower not in ('csv', 'json') -%}{%- do ours.update({'mode': 'FAILFAST'}) -%}
    {%- endif -%}
    {#- Newer files may have more columns. -#}
    {%- if format | lower in ('parquet', 'orc') and not schema -%}{%- do ours.update({'mergeSchema': 'true'}) -%}{%- endif -%}
    {%- for name, value in ours.items() if name | lower not in options | map('lower') | list -%}{%- do all.update({name: value}) -%}{%- endfor -%}
    {%- do all.update(options) -%}
    {%- do reverse_etl._create_landing(landing, path, format, schema ~ (', _malformed string' if checked else '') if schema else none, all) -%}
    {%- if not schema and reverse_etl._is_without_partitions(landing) -%}
        {%- set columns = [] -%}
        {%- for column in reverse_etl._columns_of(landing) -%}{%- do columns.append(reverse_etl._quote(column.name) ~ ' ' ~ column.type) -%}{%- endfor -%}
        {%- do reverse_etl._create_landing(landing, path, format, columns | join(', '), all) -%}
    {%- endif -%}
    {%- if checked and not schema -%}
        {%- set names = reverse_etl._columns_of(landing) | map(attribute='name') | list -%}
        {%- if names == ['_malformed'] -%}
            {%- do run_query('drop table ' ~ landing) -%}
            {%- do reverse_etl._view_refuse('new_files ' ~ path, 'no row that is ' ~ format, 'one row a line, for columns without a schema; nothing was captured', 'correct the files, or pass the options that they need, such as multiLine') -%}
        {%- elif '_malformed' not in names -%}
            {%- do run_query('alter table ' ~ landing ~ ' add columns (_malformed string)') -%}
        {%- endif -%}
    {%- endif -%}
    {{ return('(select *, _metadata.file_modification_time as _file_modified from ' ~ landing ~ ')') }}
{% endmacro %}


{% macro _create_landing(landing, path, format, columns, options) %}
    {%- do run_query('drop table if exists ' ~ landing) -%}
    {%- do run_query(
        'create table ' ~ landing ~ (' (' ~ columns ~ ')' if columns else '') ~ ' using ' ~ format ~ ' ' ~ reverse_etl._source_options(options) ~ ' location ' ~ reverse_etl._string(path)
    ) -%}
{% endmacro %}


{#
  Whether Spark found folders such as day=2026-11-01, and wants their list from the catalog, which has none: the table is empty. With its columns named it looks for
  them itself, and heeds pathGlobFilter, which it does not for folders of the catalog (alter table ... recover partitions). Unity Catalog looks for them itself.
#}
{% macro _is_without_partitions(landing) %}
    {%- if target.type == 'databricks' and landing.database not in (none, 'hive_metastore') -%}{{ return(false) }}{%- endif -%}
    {%- for row in run_query('describe table ' ~ landing).rows if row[0] == '# Partition Information' -%}{{ return(true) }}{%- endfor -%}
    {{ return(false) }}
{% endmacro %}


{# Any other data source: one view for each new file, but for what Excel leaves beside one that is open. Columns are found by their names, for files may have them in another order. #}
{% macro _landing_rows_by_file(landing, path, format, schema, options, newer, views) %}
    {%- set view = reverse_etl._quote(landing.identifier) -%}
    {%- set listing = {'path': path} -%}
    {%- for name, value in options.items() if name | lower in ('recursivefilelookup', 'pathglobfilter') -%}{%- do listing.update({name: value}) -%}{%- endfor -%}
    {%- do run_query('create or replace temporary view ' ~ view ~ ' using binaryFile ' ~ reverse_etl._source_options(listing)) -%}
    {%- set files = run_query('select path, unix_micros(_file_modified) from (select path, modificationTime as _file_modified from ' ~ view ~ ') where path not rlike \'/~[$][^/]*$\' and ' ~ newer).rows -%}
    {%- do run_query('drop view ' ~ view) -%}
    {%- set rows, names = [], [] -%}
    {%- for file in files -%}
        {%- set part = reverse_etl._quote(landing.identifier ~ '_' ~ loop.index) -%}
        {#- A listed name is no pattern: with [, { or * in it, Spark's file sources would find nothing. Other sources ignore the option. -#}
        {%- set all = {'path': file[0], '__globPaths__': 'false'} -%}
        {%- do all.update(options) -%}
        {%- do run_query('create or replace temporary view ' ~ part ~ (' (' ~ schema ~ ')' if schema else '') ~ ' using ' ~ format ~ ' ' ~ reverse_etl._source_options(all)) -%}
        {%- do views.append('view ' ~ part) -%}
        {%- set found = [] if schema else run_query('describe query select * from ' ~ part).columns[0].values() | list -%}
        {%- if loop.first -%}{%- do names.extend(found) -%}{%- endif -%}
        {%- if found | map('lower') | sort != names | map('lower') | sort -%}
            {%- do reverse_etl._view_refuse(
                'new_files ' ~ path, 'a file with the columns ' ~ found | join(', ') ~ ' beside one with ' ~ names | join(', '), 'the same ones in each file; nothing was captured',
                "pass schema='...' with the columns that all have, or correct the files"
            ) -%}
        {%- endif -%}
        {%- do rows.append('select ' ~ ('*' if schema else reverse_etl._columns(names)) ~ ', timestamp_micros(' ~ file[1] ~ ') as _file_modified from ' ~ part) -%}
    {%- endfor -%}
    {%- if not rows and not schema -%}
        {%- do reverse_etl._view_refuse('new_files ' ~ path, 'no new file, and no schema', 'a schema, for columns without a file', "pass schema='id bigint, ...'") -%}
    {%- elif not rows -%}
        {{ return('(select row.*, cast(null as timestamp) as _file_modified from (select from_json(\'\', ' ~ reverse_etl._string(schema) ~ ') as row) where false)') }}
    {%- endif -%}
    {{ return('(' ~ rows | join(' union all ') ~ ')') }}
{% endmacro %}


{% macro _check_malformed(path, format, input) %}
    {%- set found = run_query('select count(*), count(distinct _file_modified) from ' ~ input ~ ' where _malformed is not null').rows[0] -%}
    {%- if found[0] | int -%}
        {%- do run_query('drop table if exists ' ~ input) -%}
        {%- do reverse_etl._view_refuse(
            'new_files ' ~ path, found[0] ~ ' rows in ' ~ found[1] ~ ' files that are no ' ~ format ~ ' of the schema', 'the columns and types of the schema; nothing was captured',
            "correct the files or the schema, or leave such rows out with options={'mode': 'DROPMALFORMED'}"
        ) -%}
    {%- endif -%}
{% endmacro %}
