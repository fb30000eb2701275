{#
  Go back to an earlier state with a new snapshot, whose changes undo everything since; syncs push it like any other. One of `to` (a snapshot id),
  label, timestamp and savepoint says where to. The model is frozen until release, or the next run would capture the bad data again.
    dbt run-operation rollback --args '{model: contacts_changelog, to: 41}'
    dbt run-operation rollback --args '{model: contacts_changelog, savepoint: before_import}'
#}
{% macro rollback(model, to=none, label=none, timestamp=none, savepoint=none) %}
    {%- if not execute -%}{{ return('') }}{%- endif -%}
    {%- set changelog = reverse_etl._opened_changelog('rollback', model) -%}
    {%- if [to, label, timestamp, savepoint] | reject('none') | list | length != 1 -%}
        {%- do reverse_etl._operation_refuse(
            'rollback', model, [to, label, timestamp, savepoint] | reject('none') | list | length ~ ' of to, label, timestamp and savepoint', 'exactly one',
            reverse_etl._command('rollback', 'model: ' ~ model ~ ', to: ' ~ changelog.head.snapshot_id)
        ) -%}
    {%- endif -%}
    {%- set snapshot_id = reverse_etl._rollback_snapshot(changelog, to, label, timestamp, savepoint) -%}
    {%- set place = 'snapshot ' ~ snapshot_id ~ (" (label '" ~ label ~ "' as corrected)" if label is not none else '') -%}
    {%- set then = reverse_etl._header(changelog.target, snapshot_id) -%}
    {%- if then is none -%}
        {%- do reverse_etl._operation_refuse(
            'rollback', model, place ~ ', which was pruned', 'a snapshot that is kept, or a savepoint (' ~ (reverse_etl._savepoints(changelog.target) | join(', ') or 'none') ~ ')',
            "take one: select * from reverse_etl.snapshots(ref('" ~ model ~ "'))"
        ) -%}
    {%- endif -%}
    {%- for former in changelog.columns.dropped -%}
        {%- for column in then.columns if modules.re.fullmatch('(?i)' ~ modules.re.escape(column.name) ~ '_before_[0-9]+', former.name) and reverse_etl._is_retyped_since(changelog.target, former.name.rsplit('_', 1)[1] | int, snapshot_id, label) -%}
            {%- do reverse_etl._operation_refuse(
                'rollback', model, 'values of column ' ~ column.name ~ ' in ' ~ former.name ~ ', for it has had another type since', 'columns that hold the values of ' ~ place,
                'go to snapshot ' ~ former.name.rsplit('_', 1)[1] ~ ' or a later one'
            ) -%}
        {%- endfor -%}
    {%- endfor -%}
    {%- set columns = reverse_etl._columns_at(changelog.head, then.columns, changelog.columns.present) -%}
    {%- set image = reverse_etl.as_of(
        changelog.target, snapshot=none if label is not none else snapshot_id, label=label, key=columns.key, columns=columns.names
    ) -%}
    {%- do reverse_etl._roll_back(changelog, columns, image, place, reverse_etl._labels_undone(changelog, then, label)) -%}
{% endmacro %}


{# Whether a column got its present type, in the snapshot `retyped`, after what is shown. A late correction of a label may be newer than that, and its other rows older. #}
{% macro _is_retyped_since(target, retyped, snapshot_id, label) %}
    {%- set header = reverse_etl._header(target, retyped) if label is not none else none -%}
    {{ return(retyped > snapshot_id or (header is not none and (header.label or '') > label | string)) }}
{% endmacro %}


{#
  Of a changelog with labels: what opens and counts as a label again, {open_label, reopened, undone}; of any other: nothing. The labels after that place
  count no more, for none of their rows is there; they can be captured again. Such a rollback holds a full image, for what lies before it may be undone.
#}
{% macro _labels_undone(changelog, then, label) %}
    {%- set head = changelog.head -%}
    {%- if head.open_label is none and then.open_label is none and not head.undone -%}{{ return({}) }}{%- endif -%}
    {%- if label is none -%}
        {%- set since = [{'first': then.snapshot_id + 1, 'last': head.snapshot_id}] if then.snapshot_id < head.snapshot_id else [] -%}
        {{ return({'open_label': then.open_label, 'reopened': none, 'undone': then.undone + since}) }}
    {%- endif -%}
    {%- set greater = run_query(
        'select _snapshot_id from ' ~ reverse_etl._label_snapshots(changelog.target) ~ ' where _reverse_etl_live and _reverse_etl_label > ' ~ reverse_etl._string(label)
    ).columns[0].values() -%}
    {{ return({'open_label': label | string, 'reopened': none, 'undone': head.undone + reverse_etl._runs(greater | map('int') | list)}) }}
{% endmacro %}


{% macro _roll_back(changelog, columns, image, place, labels) %}
    {%- if changelog.head.frozen and not reverse_etl._differs_from_head(changelog, columns, image) -%}
        {%- do reverse_etl._operation_done('rollback', changelog, 'nothing to do: the head shows ' ~ place ~ ', and it is frozen') -%}
    {%- else -%}
        {%- set capture = reverse_etl._own_block(changelog.node.config).get('capture', 'compare') -%}
        {%- set facts = {'kind': 'rollback', 'frozen': true, 'positions': {}} -%}
        {%- do facts.update(labels) -%}
        {#- Without positions the next capture compares everything. A feed has nothing to compare with: it goes on from its own ones. -#}
        {%- set is_feed = (capture if capture is string else capture.strategy) == 'feed' -%}
        {%- for name, position in changelog.head.positions.items() if is_feed and name.split('/')[0] in ['kafka', 'files', 'sequence'] -%}
            {%- do facts.positions.update({name: position}) -%}
        {%- endfor -%}
        {%- set result = reverse_etl._capture_image(changelog, columns, image, facts, capture.sequence if is_feed else none) -%}
        {%- do reverse_etl._operation_done(
            'rollback', changelog, 'back to ' ~ place ~ ' (' ~ result.message ~ '). It is frozen: dbt run captures nothing and pushes this; dbt-reverse-etl plan shows what it sends. To capture again: '
            ~ reverse_etl._command('release', 'model: ' ~ changelog.name)
        ) -%}
    {%- endif -%}
{% endmacro %}


{% macro _differs_from_head(changelog, columns, image) %}
    {%- set head = changelog.head -%}
    {{ return(run_query(
        'select 1 from (select ' ~ reverse_etl._columns(columns.key) ~ ', ' ~ reverse_etl._model_hash(columns.model) ~ ' as _row_hash from ' ~ image ~ ') n full outer join ('
        ~ reverse_etl._image(changelog.target, columns.key, columns.key, head.base, head.snapshot_id) ~ ') o on ' ~ reverse_etl._same_key(columns.key, 'n', 'o')
        ~ ' where n._row_hash is distinct from o._row_hash limit 1'
    ).rows | length > 0) }}
{% endmacro %}


{# One snapshot, as a capture makes it, of any rows: a query that stands behind `from`. `sequence`: see `_stage_known`; or none. #}
{% macro _capture_image(changelog, columns, rows, facts, sequence=none) %}
    {%- do reverse_etl._add_header_fields(changelog.target, changelog.present) -%}
    {%- set view = reverse_etl._quote(changelog.target.identifier ~ '__model_' ~ changelog.uuid[:8]) -%}
    {%- call statement('image') -%} create or replace temporary view {{ view }} as select {{ reverse_etl._columns(columns.names) }} from {{ rows }} {%- endcall -%}
    {%- set query = {'name': view, 'rows': view, 'columns': columns.model, 'stored': false, 'candidates': none, 'types': {}, 'sequence': sequence} -%}
    {%- set settings = {'key': columns.key, 'compare': 'hash', 'on_bad_key': 'fail', 'capture': {'strategy': 'compare'}} -%}
    {%- set result = reverse_etl._captured([reverse_etl._capture(changelog.target, changelog.head, columns, query, changelog.uuid, settings, facts)]) -%}
    {%- do reverse_etl._drop_model_query(query) -%}
    {{ return(result) }}
{% endmacro %}


{# The snapshot that is meant. #}
{% macro _rollback_snapshot(changelog, to, label, timestamp, savepoint) %}
    {%- set target, head = changelog.target, changelog.head -%}
    {%- if savepoint is not none -%}
        {%- set known = reverse_etl._savepoints(target) -%}
        {%- if savepoint not in known -%}
            {%- do reverse_etl._operation_refuse('rollback', changelog.name, "the savepoint '" ~ savepoint ~ "'", 'one of ' ~ (known | join(', ') or '(there is none)'), 'correct --args') -%}
        {%- endif -%}
        {{ return(known[savepoint]) }}
    {%- elif to is not none -%}
        {%- if not (to is integer or to is string and to.isdigit()) or not 1 <= to | int <= head.snapshot_id -%}
            {%- do reverse_etl._operation_refuse('rollback', changelog.name, "to: '" ~ to ~ "'", 'a snapshot id from 1 to ' ~ head.snapshot_id, 'correct --args') -%}
        {%- endif -%}
        {{ return(to | int) }}
    {%- endif -%}
    {%- set snapshots = reverse_etl._label_snapshots(target) ~ ' where _reverse_etl_live and _reverse_etl_label = ' ~ reverse_etl._string(label) if label is not none
        else target ~ ' where _captured_at <= timestamp ' ~ reverse_etl._string(timestamp) -%}
    {%- set found = run_query('select max(_snapshot_id) from ' ~ snapshots).rows[0][0] -%}
    {%- if found is none -%}
        {%- do reverse_etl._operation_refuse(
            'rollback', changelog.name, 'no snapshot ' ~ ("with the label '" ~ label ~ "'" if label is not none else 'at or before ' ~ timestamp), 'one',
            "take one: select * from reverse_etl.snapshots(ref('" ~ changelog.name ~ "'))"
        ) -%}
    {%- endif -%}
    {{ return(found | int) }}
{% endmacro %}
