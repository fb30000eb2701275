{#
  Keep a table quick to read: compaction, layout, statistics, and VACUUM with the table's own retention.
    dbt run-operation maintain --args '{model: contacts_changelog}'                    a changelog: clustered by _snapshot_id
    dbt run-operation maintain --args '{model: contacts_wide, cluster_by: [country]}'  any other Delta table: liquid clustering by these columns,
    dbt run-operation maintain --args '{model: contacts_wide, zorder_by: [country]}'   or Z-order, or compaction alone
#}
{% macro maintain(model, cluster_by=none, zorder_by=none, vacuum=true) %}
    {%- if not execute -%}{{ return('') }}{%- endif -%}
    {%- set node = reverse_etl._maintained_node(model) -%}
    {%- set relation = adapter.get_relation(database=node.database, schema=node.schema, identifier=node.alias) -%}
    {%- if reverse_etl._is_left_out('maintain', model, 'no table' if relation is none else '') -%}{{ return('') }}{%- endif -%}
    {%- if relation is none or relation.type == 'view' -%}
        {%- do reverse_etl._operation_refuse('maintain', model, 'no table', 'a Delta table', 'dbt run --select ' ~ model) -%}
    {%- endif -%}
    {%- set is_changelog = node.config.materialized == 'changelog' -%}
    {%- set cluster_by = [cluster_by] if cluster_by is string else cluster_by -%}
    {%- set zorder_by = [zorder_by] if zorder_by is string else zorder_by -%}
    {%- if is_changelog and (cluster_by or zorder_by) -%}
        {%- do reverse_etl._operation_refuse(
            'maintain', model, 'columns to lay a changelog out by', 'none: it stays clustered by _snapshot_id, for by a key every range of snapshots would read all files',
            reverse_etl._command('maintain', 'model: ' ~ model)
        ) -%}
    {%- elif cluster_by and zorder_by -%}
        {%- do reverse_etl._operation_refuse('maintain', model, 'both cluster_by and zorder_by', 'one of them', reverse_etl._command('maintain', 'model: ' ~ model ~ ', cluster_by: [...]')) -%}
    {%- endif -%}
    {%- set before = reverse_etl._detail(relation) -%}
    {%- if is_changelog -%}
        {%- set cluster_by = ['_snapshot_id'] -%}
        {%- do reverse_etl._set_statistics(relation, node) -%}
    {%- endif -%}
    {%- set properties = reverse_etl._table_properties(relation) -%}
    {#- The files of rows that are only marked as deleted still hold them, also after the property was switched off. -#}
    {%- set is_marked = properties.get('delta.enableDeletionVectors') == 'true' or 'delta.feature.deletionVectors' in properties -%}
    {%- if is_marked -%}{%- do reverse_etl._purge(relation, before.clustered if is_changelog else []) -%}{%- endif -%}
    {%- do reverse_etl._lay_out(model, relation, before, cluster_by, zorder_by) -%}
    {%- set kept = reverse_etl._files_kept_for(relation, node) if vacuum else 'not asked for' -%}
    {%- if not kept -%}{%- do run_query('vacuum ' ~ relation) -%}{%- endif -%}
    {%- do log(
        'maintain ' ~ model ~ ': ' ~ before.files ~ ' files before, ' ~ reverse_etl._detail(relation).files ~ ' now'
        ~ ('; no VACUUM: ' ~ kept if kept else '; files that were removed before its retention are deleted'), info=true
    ) -%}
{% endmacro %}


{# REORG leaves out the files of a table that one OPTIMIZE has clustered, so it works without clustering. The files keep what they know of theirs. #}
{% macro _purge(relation, clustered) %}
    {%- if clustered -%}{%- do run_query('alter table ' ~ relation ~ ' cluster by none') -%}{%- endif -%}
    {%- do run_query('reorg table ' ~ relation ~ ' apply (purge)') -%}
    {%- if clustered -%}{%- do run_query('alter table ' ~ relation ~ ' cluster by (' ~ reverse_etl._columns(clustered) ~ ')') -%}{%- endif -%}
{% endmacro %}


{% macro _maintained_node(name) %}
    {%- set known = graph.nodes.values() | selectattr('resource_type', 'in', ['model', 'snapshot', 'seed']) | list -%}
    {{ return(reverse_etl._the_one(name, known, 'a model, snapshot or seed of this project')) }}
{% endmacro %}


{# {files: their number, clustered: columns}. A list comes as text: as JSON, or from Databricks as an array prints itself. #}
{% macro _detail(relation) %}
    {%- set found = run_query('describe detail ' ~ relation).rows[0].dict() -%}
    {{ return({'files': found['numFiles'], 'clustered': modules.re.findall('[\'"]([^\'"]+)[\'"]', found.get('clusteringColumns') | string)}) }}
{% endmacro %}


{# Liquid clustering lasts, so it is set once; files that were written otherwise are then written anew. Z-order is done each time. #}
{% macro _lay_out(model, relation, detail, cluster_by, zorder_by) %}
    {%- if zorder_by -%}
        {%- if detail.clustered -%}
            {%- do reverse_etl._operation_refuse(
                'maintain', model, 'a table clustered by ' ~ detail.clustered | join(', '), 'one without liquid clustering, for Z-order', 'use cluster_by, or: alter table ' ~ relation ~ ' cluster by none'
            ) -%}
        {%- endif -%}
        {%- do run_query('optimize ' ~ relation ~ ' zorder by (' ~ reverse_etl._columns(zorder_by) ~ ')') -%}
    {%- else -%}
        {%- set anew = cluster_by and cluster_by | map('lower') | list != detail.clustered | map('lower') | list -%}
        {%- if anew -%}{%- do run_query('alter table ' ~ relation ~ ' cluster by (' ~ reverse_etl._columns(cluster_by) ~ ')') -%}{%- endif -%}
        {%- do run_query('optimize ' ~ relation ~ (' full' if anew else '')) -%}
    {%- endif -%}
{% endmacro %}


{# Statistics of the columns that ranges and keys are looked up by, unless the model's tblproperties say otherwise. #}
{% macro _set_statistics(relation, node) %}
    {%- set name = 'delta.dataSkippingStatsColumns' -%}
    {%- set key = [node.config.unique_key] if node.config.unique_key is string else node.config.unique_key -%}
    {%- set wanted = reverse_etl._statistics_columns(adapter.get_columns_in_relation(relation), key) -%}
    {%- if name not in (node.config.tblproperties or {}) and not reverse_etl._has_property(reverse_etl._table_properties(relation), name, wanted) -%}
        {%- do run_query('alter table ' ~ relation ~ ' set tblproperties (' ~ reverse_etl._string(name) ~ ' = ' ~ reverse_etl._string(wanted) ~ ')') -%}
    {%- endif -%}
{% endmacro %}

{% macro _statistics_columns(columns, key) %}
    {%- set statistics = ['_snapshot_id', '_change'] -%}
    {%- for column in columns if column.name in key and column.dtype not in ['binary', 'boolean'] and '<' not in column.dtype -%}
        {%- do statistics.append(reverse_etl._quote(column.name)) -%}
    {%- endfor -%}
    {{ return(statistics | join(',')) }}
{% endmacro %}


{#
  Why no file may be deleted now, or ''. Whoever reads a table goes on reading the files of the version that it began with: they have to outlive
  the longest push and capture.
#}
{% macro _files_kept_for(relation, node) %}
    {%- set retention = reverse_etl._retention(reverse_etl._table_properties(relation)) -%}
    {%- if not run_query('select current_timestamp() - ' ~ retention ~ ' <= current_timestamp() - interval 24 hours').rows[0][0] -%}
        {{ return("its delta.deletedFileRetentionDuration is '" ~ retention ~ "', and what began a day ago may still read; set it to 'interval 24 hours' or more") }}
    {%- endif -%}
    {%- set ledger = graph.nodes['model.reverse_etl.reverse_etl_ledger'] -%}
    {%- set ledger = adapter.get_relation(database=ledger.database, schema=ledger.schema, identifier=ledger.alias) -%}
    {%- if ledger is none or node.config.materialized != 'changelog' -%}{{ return('') }}{%- endif -%}
    {%- set running = run_query(reverse_etl._running_since(ledger, retention)).rows -%}
    {{ return('a push of ' ~ running[0][0] ~ ' that began before its retention (' ~ retention ~ ') still runs' if running else '') }}
{% endmacro %}


{# How long a Delta table keeps files that it no longer needs: Delta takes an interval with the word or without. #}
{% macro _retention(properties) %}
    {%- set said = properties.get('delta.deletedFileRetentionDuration') or '7 days' -%}
    {{ return('interval ' ~ said | lower | replace('interval', '') | trim) }}
{% endmacro %}


{# Pushes that began longer ago than the retention, are not finished, and hold their lease. #}
{% macro _running_since(ledger, retention) -%}
    with newest as ({{ reverse_etl._newest_runs(ledger) }})
    select max(nullif(ledger.sync, ''))
    from {{ ledger }} ledger
    inner join newest on newest.sync_id = ledger.sync_id and newest.fence = ledger.fence
    group by ledger.sync_id
    having count_if(ledger.fact = 'run_finished') = 0
        and max(to_timestamp(get_json_object(ledger.body, '$.lease_until'))) > current_timestamp()
        and min(ledger.recorded_at) < current_timestamp() - {{ retention }}
{%- endmacro %}
