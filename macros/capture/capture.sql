{# What the model changed: one capture, or one for each part of a feed with labels. Returns {message, code, changes, drift, note} #}
{% macro _capture_model(target, head, columns, query, capture_uuid, settings) %}
    {%- set captures = [] -%}
    {%- do query.update({'inputs': reverse_etl._state_of_inputs(head, settings, query.sql)}) -%}
    {%- if reverse_etl._no_input_changed(head, columns, query.inputs) -%}
        {%- set nothing = {'header': head, 'counts': {'inserts': 0, 'updates': 0, 'deletes': 0}, 'snapshots': 0} -%}
        {%- do nothing.update({'kept_aside': 0, 'quarantined': 0, 'drift': none, 'note': ' (no input changed)'}) -%}
        {{ return(reverse_etl._captured([nothing])) }}
    {%- endif -%}
    {%- for labels in reverse_etl._parts_by_label(target, head, columns, query, capture_uuid, settings) -%}
        {%- set before = captures[-1].header if captures else head -%}
        {%- set proposal = reverse_etl._propose(target, before, columns, query, capture_uuid, settings, labels) -%}
        {%- if not loop.last -%}
            {#- Only the last one has seen everything. -#}
            {%- do proposal.facts.update({'positions': {}, 'quarantined': [], 'reopened': none}) -%}
            {%- if before is not none -%}{%- do proposal.facts.update({'positions': reverse_etl._positions_before(before, proposal.facts), 'quarantined': before.quarantined, 'reopened': before.reopened}) -%}{%- endif -%}
        {%- endif -%}
        {%- do captures.append(reverse_etl._capture(target, before, columns, query, capture_uuid, settings, proposal.facts, proposal.drift_against)) -%}
        {%- for relation in proposal.temporary + ([labels.events] if loop.last and labels else []) -%}{%- do adapter.drop_relation(relation) -%}{%- endfor -%}
        {%- do captures[-1].update({'note': proposal.note}) -%}
        {%- do columns.update({'widened': [], 'gone': []}) -%}
        {%- if not loop.last -%}{%- do settings.update({'captured_until': labels.until}) -%}{%- endif -%}
    {%- endfor -%}
    {{ return(reverse_etl._captured(captures)) }}
{% endmacro %}


{% macro _nothing_captured(settings) -%}
    {{ 'nothing was captured' if not settings.captured_until else 'what comes before a label after ' ~ settings.captured_until ~ ' is captured, and nothing else' }}
{%- endmacro %}


{#
  The difference of a query's rows and the head image, staged, checked and committed as one snapshot, or as one for each label; nothing, where nothing changed.
  facts: what the header says beside the counts (see _next_header); drift_against: candidates that a reconcile ought to have needed no more than.
  Returns {header, counts, snapshots, kept_aside, quarantined, drift}
#}
{% macro _capture(target, head, columns, query, capture_uuid, settings, facts, drift_against=none) %}
    {%- do query.setdefault('rows', query.name) -%}
    {#- Where the old rows are few, the diff brings them along, and saves a second look at the changelog. -#}
    {%- set diff = query.compare or settings.compare -%}
    {%- set few = head is not none and (query.candidates or head.live_rows <= 100000) and diff != 'except' -%}
    {%- do query.update({'old_images': few and not (settings.label or columns.dropped or columns.widened)}) -%}
    {%- set stage = reverse_etl._stage_relation(target, capture_uuid) -%}
    {%- set changed_rows -%}
        select *{{ ', ' if columns.dropped }}{{ reverse_etl._null_columns(columns.dropped) }}
        from (
            {{ reverse_etl._diff(diff)(target, head, columns, query, settings) }}
        )
    {%- endset -%}
    {%- call statement('stage') -%}
        create table {{ stage }} using {{ reverse_etl._private_format() }} as
        {{ reverse_etl._labelled(changed_rows, settings) }}
    {%- endcall -%}
    {%- if columns.gone and query.compare == 'feed' -%}{%- do reverse_etl._stage_emptied(target, stage, head, columns, settings) -%}{%- endif -%}
    {%- if query.sequence in columns.names -%}{%- do reverse_etl._stage_known(target, stage, columns, query.sequence) -%}{%- endif -%}
    {%- set counts = reverse_etl._stage_counts(stage, head, columns, query) -%}
    {%- set quarantined = reverse_etl._check_keys(target, stage, counts, columns, query, settings) -%}
    {%- do facts.setdefault('quarantined', quarantined) -%}
    {%- if drift_against -%}{%- do facts.update({'drift': reverse_etl._drift(stage, drift_against, columns)}) -%}{%- endif -%}
    {%- set split = reverse_etl._groups(stage, head, counts, settings) -%}
    {%- if split.kept_aside -%}{%- do facts.update({'positions': reverse_etl._positions_before(head, facts)}) -%}{%- endif -%}
    {%- set captured = reverse_etl._commit_groups(target, stage, head, split.groups, columns, capture_uuid, facts, counts.tombstones, query.old_images) -%}
    {%- do adapter.drop_relation(stage) -%}
    {%- do captured.update({'kept_aside': split.kept_aside, 'quarantined': quarantined | length, 'drift': facts.drift}) -%}
    {{ return(captured) }}
{% endmacro %}


{# After a kill between two labels: the head with the columns and positions that it had before the first of them. #}
{% macro _before_the_labels(head) %}
    {%- if head is none or 'reverse_etl/columns' not in head.positions -%}{{ return(head) }}{%- endif -%}
    {%- set positions = dict(head.positions) -%}
    {%- set columns = fromjson(positions.pop('reverse_etl/columns')) -%}
    {{ return(dict(head, columns=columns, positions=positions)) }}
{% endmacro %}


{#
  The positions of a snapshot after which rows are left to capture: these are proposed again only from the positions of the head. What a full compare or a
  feed left is found by another full compare: without `reverse_etl/query` the next capture compares everything.
#}
{% macro _positions_before(head, facts) %}
    {%- set positions = {} -%}
    {%- do positions.update(head.positions if head is not none else {}) -%}
    {%- do positions.pop('reverse_etl/inputs', none) -%}
    {%- if facts.unfinished -%}{%- do positions.pop('reverse_etl/query', none) -%}{%- endif -%}
    {{ return(positions) }}
{% endmacro %}


{# Rows that lose a value with a column, and that no event names. A sub-query takes the name outside of it for a column of its own, where it has one. #}
{% macro _stage_emptied(target, stage, head, columns, settings) %}
    {%- set emptied -%}
        select 'update' as _stage, {{ reverse_etl._columns(columns.names) }}, {{ reverse_etl._null_columns(columns.dropped) }}, {{ reverse_etl._model_hash(columns.model) }} as _row_hash, _snapshot_id as _old_snapshot_id
        from ({{ reverse_etl._image(target, columns.key, columns.names + columns.gone, head.base, head.snapshot_id, newest=true) }}) _reverse_etl_row
        where not {{ reverse_etl._all_null(columns.gone) }} and not exists (select 1 from {{ stage }} s where {{ reverse_etl._same_key(columns.key, 's', '_reverse_etl_row') }})
    {%- endset -%}
    {%- call statement('emptied') -%} insert into {{ stage }} by name {{ reverse_etl._labelled(emptied, settings) }} {%- endcall -%}
{% endmacro %}


{% macro _diff(name) %}{{ return(reverse_etl['compare_' ~ name] if 'compare_' ~ name in reverse_etl else context['compare_' ~ name]) }}{% endmacro %}


{# The head, as dbt's artifacts tell it to the runner; with its capture, where the header is its own. #}
{% macro _head_code(header) -%}
    {%- set changed = header.changed or header.snapshot_id -%}
    snapshot {{ changed }} of {{ header.changelog_uuid }}{{ ' by ' ~ header.capture_uuid if changed == header.snapshot_id }}
{%- endmacro %}


{# Captures of one run, as dbt tells of them: {message, code, changes, drift, note} #}
{% macro _captured(captures) %}
    {%- set last, counts = captures[-1], {} -%}
    {%- for name in ['inserts', 'updates', 'deletes'] -%}{%- do counts.update({name: captures | map(attribute='counts') | sum(attribute=name)}) -%}{%- endfor -%}
    {%- set snapshots = captures | sum(attribute='snapshots') -%}
    {{ return({
        'message': '+' ~ counts.inserts ~ ' ~' ~ counts.updates ~ ' -' ~ counts.deletes ~ ', snapshot ' ~ last.header.snapshot_id
            ~ (' (' ~ snapshots ~ ' labels)' if snapshots > 1 else '') ~ (' (' ~ last.kept_aside ~ ' rows kept aside)' if last.kept_aside else '')
            ~ (' (' ~ last.quarantined ~ ' keys quarantined)' if last.quarantined else '') ~ (' (drift: ' ~ last.drift ~ ' changes that were not proposed)' if last.drift else ''),
        'code': reverse_etl._head_code(last.header),
        'changes': counts.inserts + counts.updates + counts.deletes,
        'drift': last.drift, 'note': last.note,
    }) }}
{% endmacro %}


{#
  One snapshot for each group; only the last says how far the inputs were read, for a capture that is killed between them starts again.
  The last alone may carry a full image: the old images of the later groups stand where the head of this capture saw them.
  Returns {header, counts, snapshots}
#}
{% macro _commit_groups(target, stage, head, groups, columns, capture_uuid, facts, tombstones, old_images) %}
    {%- set captured = {'header': head, 'counts': {'inserts': 0, 'updates': 0, 'deletes': 0}, 'snapshots': 0} -%}
    {%- for group in groups -%}
        {%- set said = {'kind': facts.kind} -%}
        {%- set changes = group.inserts + group.updates + group.deletes -%}
        {#- A label stays reopened until a whole capture has changed something. -#}
        {%- if loop.last and group.label is not none and changes -%}{%- do said.update({'reopened': none}) -%}{%- endif -%}
        {%- if loop.last -%}{%- do said.update(facts) -%}
        {%- elif head is not none -%}
            {#- What other columns or a full compare ask for is done by the last one. -#}
            {%- do said.update({'positions': reverse_etl._positions_before(head, facts)}) -%}
            {%- if columns.widened or columns.added or columns.gone -%}{%- do said.positions.update({'reverse_etl/columns': tojson(head.columns)}) -%}{%- endif -%}
        {%- endif -%}
        {%- if group.label is not none -%}
            {%- set open_label = captured.header.open_label if captured.header is not none else none -%}
            {%- do said.update({'label': group.label, 'open_label': group.label if open_label is none or group.label > open_label else open_label}) -%}
        {%- endif -%}
        {%- if changes or loop.last and (tombstones or columns.widened or columns.added or columns.gone or reverse_etl._says_more(facts, head)) -%}
            {%- set part = reverse_etl._part_of(target, stage, group, capture_uuid) -%}
            {%- set header = reverse_etl._next_header(captured.header, group, columns, capture_uuid, said, checkpoint=columns.widened | length + facts.undone | length > 0 if loop.last else none) -%}
            {%- do reverse_etl._commit(target, part, captured.header, header, columns, old_images) -%}
            {%- if part != stage -%}{%- do adapter.drop_relation(part) -%}{%- endif -%}
            {%- do captured.update({'header': header, 'snapshots': captured.snapshots + (1 if changes else 0)}) -%}
            {%- for name in captured.counts -%}{%- do captured.counts.update({name: captured.counts[name] + group[name]}) -%}{%- endfor -%}
        {%- endif -%}
    {%- endfor -%}
    {{ return(captured) }}
{% endmacro %}


{# The stage of one group: a table, because its old images join it. #}
{% macro _part_of(target, stage, group, capture_uuid) %}
    {%- if group.where is none -%}{{ return(stage) }}{%- endif -%}
    {%- set part = reverse_etl._stage_relation(target, local_md5(capture_uuid ~ group.label)) -%}
    {%- call statement('part') -%}
        create table {{ part }} using {{ reverse_etl._private_format() }} as select * from {{ stage }} where {{ group.where }}
    {%- endcall -%}
    {{ return(part) }}
{% endmacro %}


{# Without changes a header is worth a commit where it says something new; captures since the last reconcile count by their headers. #}
{% macro _says_more(facts, head) %}
    {{ return(
        head is none or facts.kind != 'capture' or facts.quarantined != head.quarantined or reverse_etl._says_other_positions(facts, head)
        or facts.get('since_reconcile', 0) > 0
    ) }}
{% endmacro %}


{# Where an input changed and no row did, nothing is committed: the next change records the inputs. #}
{% macro _says_other_positions(facts, head) %}
    {%- set told, known = {}, {} -%}
    {%- do told.update(facts.get('positions', head.positions)) -%}
    {%- do known.update(head.positions) -%}
    {%- if 'reverse_etl/inputs' not in told or 'reverse_etl/inputs' in known and head.package_version == reverse_etl.version() -%}
        {%- do told.pop('reverse_etl/inputs', none) -%}{%- do known.pop('reverse_etl/inputs', none) -%}
    {%- endif -%}
    {{ return(told != known) }}
{% endmacro %}
