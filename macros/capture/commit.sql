{# The commit: one insert, header row included. #}

{#
  Before the commit, the old images of updated and deleted rows join the stage, and with a checkpoint the rows that stay.
  Not in the commit itself: Delta drops txnVersion from an insert whose query reads the table that it writes.
    old_images: the stage has the old images of its changes already
#}
{% macro _stage_old_images(target, stage, head, header, columns, old_images) %}
    {%- set checkpoint = header.base == header.snapshot_id and head is not none -%}
    {%- set names = columns.names + columns.dropped | map(attribute='name') | list -%}
    {%- set wanted = header.updates + header.deletes > 0 and not old_images -%}
    {%- if wanted or checkpoint -%}
        {%- call statement('old_images') -%}
            insert into {{ stage }} by name
            {%- if wanted %}
            select if(s._stage = 'update', 'update_preimage', 'delete_image') as _stage, {{ reverse_etl._columns(names, 'l') }}, l._row_hash, s._old_snapshot_id
            from {{ target }} l
            join {{ stage }} s on {{ reverse_etl._same_key(columns.key, 'l', 's') }} and l._snapshot_id = s._old_snapshot_id
            where s._stage in ('update', 'delete') and l._change <> 'delete' and {{ reverse_etl._image_rows(head.base, none, 'l.') }}
            {%- endif %}
            {{ 'union all' if wanted and checkpoint }}
            {%- if checkpoint %}
            select 'checkpoint' as _stage, {{ reverse_etl._columns(names) }}, {{ reverse_etl._model_hash(columns.model) if columns.widened else '_row_hash' }} as _row_hash, _snapshot_id as _old_snapshot_id
            from ({{ reverse_etl._image(target, columns.key, names, head.base, head.snapshot_id, newest=true) }}) _reverse_etl_row
            where not exists (select 1 from {{ stage }} s where s._stage in ('update', 'delete') and {{ reverse_etl._same_key(columns.key, 's', '_reverse_etl_row') }})
            {%- endif %}
        {%- endcall -%}
    {%- endif -%}
{% endmacro %}


{% macro _commit(target, stage, head, header, columns, old_images) %}
    {%- do reverse_etl._stage_old_images(target, stage, head, header, columns, old_images) -%}
    {%- do reverse_etl._commit_staged(target, stage, head, header, columns) -%}
{% endmacro %}


{#
  txnVersion makes the commit exclusive: of rivals one commits, the others get a conflict, and a late repeat inserts nothing.
  So what was committed is looked up: where it is not ours, another run won. Without a stage, the header is all there is.
#}
{% macro _commit_staged(target, stage, head, header, columns) %}
    {%- set said = 'snapshot ' ~ header.snapshot_id ~ ' of capture ' ~ header.capture_uuid -%}
    {%- set rows = reverse_etl._commit_rows(stage, head, header, columns) -%}
    {%- set by = reverse_etl._range_column(columns) if stage and header.base == header.snapshot_id else none -%}
    {%- call statement('commit') -%}
        insert into {{ target }} with (txnAppId = 'changelog', txnVersion = '{{ header.snapshot_id }}', userMetadata = '{{ said }}'{{ ", optimizeWrite = 'false'" if by }}) by name
        {{ reverse_etl._sorted(rows, by, columns.key, header.live_rows) if by else rows }}
    {%- endcall -%}
    {%- if not reverse_etl._is_committed(target, header, said) -%}
        {%- if stage -%}{%- do adapter.drop_relation(stage) -%}{%- endif -%}
        {%- do reverse_etl._refuse_restored(target) -%}
        {{ exceptions.raise_compiler_error(
            'changelog ' ~ target ~ ': another run captured snapshot ' ~ header.snapshot_id ~ ' meanwhile; expected one capture at a time; nothing of this run was committed. Next: run it again; if this repeats, ' ~ reverse_etl._reset_of(target)
        ) }}
    {%- endif -%}
{% endmacro %}


{# A full image lies in the order of its keys, so that candidates are looked up in few files, and in few pages of these. By the whole key: equal values share a file. #}
{% macro _sorted(rows, by, key, count) -%}
    {%- set order = reverse_etl._columns([by] + (key | reject('equalto', by) | list)) -%}
    select /*+ repartition_by_range({{ count // 500000 + 1 }}, {{ order }}) */ * from (
        {{- rows -}}
    ) sort by {{ order }}
{%- endmacro %}


{# Delta remembers the snapshots that a RESTORE, TRUNCATE, REPLACE or CLONE removed, and takes none with the number of one. #}
{% macro _refuse_restored(target) %}
    {%- set lost = reverse_etl._lost_snapshots(target) -%}
    {%- if lost is not none -%}
        {{ exceptions.raise_compiler_error(
            'changelog ' ~ target ~ ': found ' ~ lost.by ~ ' that took it back to snapshot ' ~ lost.kept ~ ', while snapshot ' ~ lost.newest
            ~ ' was captured before; expected a changelog that only grows; nothing was committed. Next: ' ~ reverse_etl._command('undo_restore', 'model: ' ~ reverse_etl._named_by(target))
            ~ ' brings the snapshots back, then dbt run; if their files are gone: ' ~ reverse_etl._reset_of(target)
            ~ ', dbt run, then adopt or resync for each sync. To go back on purpose: rollback'
        ) }}
    {%- endif -%}
{% endmacro %}


{% macro _reset_of(target) %}{{ return(reverse_etl._command('reset', 'model: ' ~ reverse_etl._named_by(target))) }}{% endmacro %}


{# The history tells it without a look at the table, whose new version Delta would put together for that. #}
{% macro _is_committed(target, header, said) %}
    {%- for commit in run_query('describe history ' ~ target ~ ' limit 10').rows if commit['userMetadata'] == said -%}{{ return(true) }}{%- endfor -%}
    {%- set written = reverse_etl._header(target, header.snapshot_id) -%}
    {{ return(written is not none and written.capture_uuid == header.capture_uuid) }}
{% endmacro %}


{% macro _commit_rows(stage, head, header, columns) %}
    {%- set names = columns.names + columns.dropped | map(attribute='name') | list -%}
    select 'snapshot' as _change, {{ reverse_etl._snapshot_columns(header) }}, cast(null as bigint) as _row_hash, {{ reverse_etl._header_literal(header) }} as _header,
        {{ reverse_etl._null_columns(columns.model + columns.dropped) }}
    {%- if stage %}
    union all
    select case _stage when 'update' then 'update_postimage' when 'delete_image' then 'delete' else _stage end,
        {{ reverse_etl._snapshot_columns(header) }}, _row_hash, {{ reverse_etl._no_header() }}, {{ reverse_etl._columns(names) }}
    from {{ stage }} where _stage in ('insert', 'update', 'update_preimage', 'delete_image', 'checkpoint', 'savepoint', 'tombstone')
    {%- endif %}
    {%- if stage and header.base == header.snapshot_id and head is not none %}
    union all
    select 'checkpoint', {{ reverse_etl._snapshot_columns(header) }}, _row_hash, {{ reverse_etl._no_header() }}, {{ reverse_etl._columns(names) }}
    from {{ stage }} where _stage in ('insert', 'update')
    {%- endif %}
{% endmacro %}


{% macro _null_columns(columns) %}
    {%- for column in columns %}cast(null as {{ column.type }}) as {{ reverse_etl._quote(column.name) }}{{ ', ' if not loop.last }}{% endfor -%}
{% endmacro %}


{% macro _snapshot_columns(header) %}{{ header.snapshot_id }}L as _snapshot_id, current_timestamp() as _captured_at{% endmacro %}
