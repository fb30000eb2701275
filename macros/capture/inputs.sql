{#
  A full compare is left out where no input changed since the head, for it would find nothing.
  What is not known for certain is compared as ever: SQL that depends on the time, on chance or on the user, and inputs other than Delta tables.
#}

{#
  A hash of everything that decides which rows this SQL gives. None: not everything is known, or the rows are so few that to compare them takes no longer than to ask.
  To be called before the rows are read.
#}
{% macro _state_of_inputs(head, settings, sql) %}
    {%- set is_full = settings.capture.strategy == 'compare' and settings.compare == 'hash' and settings.label is none and settings.on_bad_key == 'fail' -%}
    {%- set is_asked = target.type == 'spark' and is_full and head is not none and head.live_rows >= var('reverse_etl_skip_from_rows', 100000) | int -%}
    {%- set read = reverse_etl._read_by(sql) if sql and is_asked else none -%}
    {%- set known = reverse_etl._session_settings() if read is not none else none -%}
    {%- if known is none -%}{{ return(none) }}{%- endif -%}
    {%- for table in read.tables -%}
        {%- if 'delta.minReaderVersion' not in reverse_etl._table_properties(table) -%}{{ return(none) }}{%- endif -%}
        {%- set newest = run_query('describe history ' ~ table ~ ' limit 1').rows -%}
        {%- if not newest | length -%}{{ return(none) }}{%- endif -%}
        {%- do known.append(table ~ ' ' ~ newest[0]['version'] ~ ' ' ~ newest[0]['timestamp']) -%}
    {%- endfor -%}
    {%- for view in read.views -%}
        {%- do known.append(reverse_etl._sql_of_view(view)) -%}
        {%- if reverse_etl._travels_in_time(known[-1]) -%}{{ return(none) }}{%- endif -%}
    {%- endfor -%}
    {#- The plan does not show the values of an inline table. -#}
    {{ return(local_md5(sql ~ read.plan ~ known | join('\n'))) }}
{% endmacro %}


{% macro _sql_of_view(view) %}{{ return(modules.re.sub("'transient_lastDdlTime' = '[0-9]+'", '', run_query('show create table ' ~ view).rows[0][0])) }}{% endmacro %}


{# A new release may compare in another way; and --full-refresh asks for a compare. #}
{% macro _no_input_changed(head, columns, inputs) %}
    {{ return(
        inputs is not none and head.positions.get('reverse_etl/inputs') == inputs and head.package_version == reverse_etl.version()
        and not (columns.added or columns.gone or columns.widened or should_full_refresh())
    ) }}
{% endmacro %}


{#
  What a query reads, from Spark's plan: {plan, tables, views}. None: some part of the plan may give other rows for the same input.
  `plan` has no ids of columns, which differ each time. It includes the optimized plan, where `cast('today' as date)` is a date.
#}
{% macro _read_by(query) %}
    {%- set tables, views = [], [] -%}
    {%- set plan = modules.re.sub('#[0-9]+L?', '', modules.re.sub('(CTERelation(?:Def|Ref)) [0-9]+', '\\1', reverse_etl._plan_of(query))) -%}
    {%- set parts = modules.re.split('(?m)^== (?:Analyzed Logical|Optimized Logical|Physical) Plan ==$', plan) -%}
    {%- if parts | length != 4 or ' more fields' in plan or 'InMemoryRelation' in plan or reverse_etl._travels_in_time(query) -%}{{ return(none) }}{%- endif -%}
    {%- set functions, operators = reverse_etl._steady_functions(), reverse_etl._steady_operators() -%}
    {#- With its schema: a user's function may have the name of a steady one. -#}
    {%- for name in modules.re.findall('([\\w.`]+)[$]?[(]', parts[1]) | unique if name not in functions -%}{{ return(none) }}{%- endfor -%}
    {#- The first line is the columns. -#}
    {%- for line in parts[1].strip().split('\n')[1:] -%}
        {%- set operator = modules.re.sub('^[ :+-]*', '', line) -%}
        {%- set table = modules.re.fullmatch('Relation (\\w+[.]\\w+[.]\\w+)\\[.*\\] parquet', operator) -%}
        {%- set view = modules.re.match('View [(](`\\w+`[.]`\\w+`[.]`\\w+`), ', operator) -%}
        {%- if table -%}{%- do tables.append('`' ~ table[1] | replace('.', '`.`') ~ '`') -%}
        {%- elif view -%}{%- do views.append(view[1]) -%}
        {%- elif operator.split(' ')[0] not in operators -%}{{ return(none) }}
        {%- endif -%}
    {%- endfor -%}
    {{ return({'plan': parts[1] ~ parts[2], 'tables': tables | unique | sort | list, 'views': views | unique | sort | list}) }}
{% endmacro %}


{# Spark's plan, whole: dbt's threads share one session, so another one may take the setting back in between. #}
{% macro _plan_of(query) %}
    {%- set found = namespace(plan=run_query('explain extended ' ~ query).rows[0][0]) -%}
    {%- for _ in range(5) if reverse_etl._is_cut(found.plan) -%}
        {%- do run_query('set `spark.sql.debug.maxToStringFields` = `100000`') -%}
        {%- set found.plan = run_query('explain extended ' ~ query).rows[0][0] -%}
        {%- do run_query('reset `spark.sql.debug.maxToStringFields`') -%}
    {%- endfor -%}
    {{ return(found.plan) }}
{% endmacro %}


{# With AS OF Delta reads an older version, and the plan does not show it. Comments, also nested ones, may stand between the two words. #}
{% macro _travels_in_time(query) %}{{ return(modules.re.search('(?is)\\bas\\b(?:\\s|/[*].*[*]/|--[^\\r\\n]*)+of\\b', query) is not none) }}{% endmacro %}


{# What else decides the value of an expression. None: Delta may read a version that is not the newest. #}
{% macro _session_settings() %}
    {%- set known = run_query('select current_timezone(), version()').rows[0].values() | list -%}
    {#- A bare SET takes no comment behind it, and dbt may append one. -#}
    {%- for row in run_query("execute immediate 'set'" if target.type == 'spark' else 'set').rows -%}
        {%- if row[0] == 'spark.databricks.delta.stalenessLimit' -%}{{ return(none) }}{%- endif -%}
        {%- if row[0].startswith('spark.sql.') -%}{%- do known.append(row[0] ~ ' ' ~ row[1]) -%}{%- endif -%}
    {%- endfor -%}
    {{ return(known) }}
{% endmacro %}


{% macro _steady_operators() %}
    {{ return([
        'Project', 'Filter', 'Join', 'LateralJoin', 'Aggregate', 'Expand', 'Window', 'Generate', 'Union', 'Except', 'Intersect', 'Distinct', 'Deduplicate', 'Sort', 'GlobalLimit', 'LocalLimit',
        'Offset', 'Repartition', 'RepartitionByExpression', 'ResolvedHint', 'SubqueryAlias', 'WithCTE', 'CTERelationDef,', 'CTERelationRef,', 'LocalRelation', 'Range', 'OneRowRelation',
    ]) }}
{% endmacro %}


{# Names of functions as a plan writes them, and other words before a parenthesis. None depends on the time, chance, the user, a file or another language. #}
{% macro _steady_functions() %}
    {{ return('
        Some outer cast try_cast ansi_cast knownnotnull lambdafunction windowspecdefinition specifiedwindowframe unspecifiedframe currentrow unboundedpreceding unboundedfollowing
        decimal char varchar struct named_struct array map if ifnull nvl nvl2 nullif nullifzero zeroifnull coalesce nanvl greatest least isnull isnotnull isnan equal_null in not and or
        abs acos acosh asin asinh atan atan2 atanh bround cbrt ceil ceiling conv cos cosh cot csc degrees div exp expm1 factorial floor hypot ln log log10 log1p log2 mod negative pmod
        positive pow power radians round sec shiftleft shiftright shiftrightunsigned sign signum sin sinh sqrt tan tanh try_add try_divide try_mod try_multiply try_subtract width_bucket bin
        bit_count bit_get getbit
        any any_value approx_count_distinct approx_percentile array_agg avg bit_and bit_or bit_xor bool_and bool_or collect_list collect_set corr count count_if covar_pop covar_samp every
        first first_value grouping grouping_id kurtosis last last_value listagg max max_by mean median min min_by mode percentile percentile_approx percentile_cont percentile_disc
        regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy skewness some std stddev stddev_pop stddev_samp string_agg sum try_avg try_sum var_pop
        var_samp variance spark_grouping_id
        cume_dist dense_rank lag lead nth_value ntile percent_rank rank row_number
        ascii base64 bit_length btrim char_length character_length chr collate collation concat concat_ws contains decode elt encode endswith find_in_set format_number format_string initcap
        instr lcase left len length levenshtein like ilike locate lower lpad ltrim luhn_check mask octet_length overlay parse_url position printf quote regexp regexp_count regexp_extract
        regexp_extract_all regexp_instr regexp_like regexp_replace regexp_substr repeat replace reverse right rlike rpad rtrim sentences soundex space split split_part startswith str_to_map
        substr substring substring_index to_binary to_char to_number to_varchar translate trim try_parse_url try_to_binary try_to_number try_url_decode ucase unbase64 unhex upper url_decode
        url_encode hex crc32 hash md5 sha sha1 sha2 xxhash64
        add_months convert_timezone date date_add date_diff date_format date_from_unix_date date_part date_sub date_trunc dateadd datediff datepart day dayname dayofmonth dayofweek dayofyear
        extract from_unixtime from_utc_timestamp gettimestamp hour last_day make_date make_dt_interval make_interval make_timestamp make_timestamp_ltz make_timestamp_ntz make_ym_interval minute
        month monthname months_between next_day quarter second timestamp timestamp_micros timestamp_millis timestamp_ntz timestamp_seconds timestampadd timestampdiff to_date to_timestamp
        to_timestamp_ltz to_timestamp_ntz to_unix_timestamp to_utc_timestamp trunc try_make_timestamp try_to_date try_to_timestamp unix_date unix_micros unix_millis unix_seconds weekday
        weekofyear window window_time session_window year
        aggregate array_append array_compact array_contains array_distinct array_except array_insert array_intersect array_join array_max array_min array_position array_prepend array_remove
        array_repeat array_size array_sort array_union arrays_overlap arrays_zip cardinality element_at exists explode explode_outer filter flatten forall get inline inline_outer map_concat
        map_contains_key map_entries map_filter map_from_arrays map_from_entries map_keys map_values map_zip_with posexplode posexplode_outer reduce sequence size slice sort_array stack
        transform transform_keys transform_values try_element_at zip_with
        from_csv from_json get_json_object json_array_length json_object_keys json_tuple schema_of_json to_csv to_json xpath xpath_string
    '.split()) }}
{% endmacro %}
