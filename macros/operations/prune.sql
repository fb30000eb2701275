{#
  Remove history: everything below the newest full image that lies at or before all that is still needed. Needed are the last `keep` snapshots,
  the states of the last `keep_days` days, what is published, and what syncs refer to. Savepoints stay. Of a removed snapshot its header stays, as a `pruned` row:
  whoever asks for it gets an error and never a wrong image.
    dbt run-operation prune --args '{model: contacts_changelog, keep: 100, keep_days: 30, dry_run: true}'
  without_syncs: names, or ids, of syncs whose position is given up; one of them that pushes again has to be forgotten first.
#}
{% macro prune(model, keep=none, keep_days=none, dry_run=false, without_syncs=[]) %}
    {%- if not execute -%}{{ return('') }}{%- endif -%}
    {%- set changelog = reverse_etl._opened_changelog('prune', model, true) -%}
    {%- if changelog is none -%}{{ return('') }}{%- endif -%}
    {%- for name, value in {'keep': keep, 'keep_days': keep_days}.items() if value is not none and (value is not integer or value < 1) -%}
        {%- do reverse_etl._operation_refuse('prune', model, name ~ ": '" ~ value ~ "'", 'a whole number from 1', 'correct --args') -%}
    {%- endfor -%}
    {%- if keep is none and keep_days is none -%}
        {%- do reverse_etl._operation_refuse('prune', model, 'neither keep nor keep_days', 'how much to keep', reverse_etl._command('prune', 'model: ' ~ model ~ ', keep_days: 30, dry_run: true')) -%}
    {%- endif -%}
    {%- set needed = reverse_etl._needed_from(changelog, keep, keep_days, without_syncs) -%}
    {%- set base = reverse_etl._full_image_at(changelog.target, needed.snapshot_id, changelog.head.undone) -%}
    {%- set removed = reverse_etl._prunable(changelog.target, base) -%}
    {%- set why = needed.why ~ ' needs snapshot ' ~ needed.snapshot_id ~ '; the newest full image at or before it is snapshot ' ~ base
        ~ reverse_etl._pushed_first(changelog, needed, base) -%}
    {%- if not removed.snapshots -%}
        {%- do reverse_etl._operation_done('prune', changelog, 'nothing to do: ' ~ why) -%}
    {%- elif dry_run -%}
        {%- do reverse_etl._operation_done('prune', changelog, 'would remove ' ~ removed.text ~ '. ' ~ why) -%}
    {%- else -%}
        {%- do reverse_etl._remove_below(changelog.target, base, removed.savepoints) -%}
        {%- do reverse_etl._operation_done(
            'prune', changelog, 'removed ' ~ removed.text ~ '. ' ~ why ~ '. The files go with: ' ~ reverse_etl._command('maintain', 'model: ' ~ model)
        ) -%}
    {%- endif -%}
{% endmacro %}


{# Which syncs to push first, where they alone keep prune from going back to a newer full image, as that of `checkpoint`; else nothing. #}
{% macro _pushed_first(changelog, needed, base) %}
    {%- set image = reverse_etl._full_image_at(changelog.target, needed.beside_syncs, changelog.head.undone) if needed.beside_syncs > needed.snapshot_id else base -%}
    {%- set syncs = [] -%}
    {%- for need in needed.of_syncs if need.snapshot_id < image and need.sync not in syncs -%}{%- do syncs.append(need.sync) -%}{%- endfor -%}
    {{ return('; push the sync' ~ ('s ' if syncs | length > 1 else ' ') ~ syncs | join(', ') ~ ' first, or leave out with without_syncs what is gone: snapshot ' ~ image ~ ' holds a full image' if image > base else '') }}
{% endmacro %}


{# The oldest snapshot that something needs, and what: {snapshot_id, why, of_syncs: [{sync, snapshot_id}] of those that a push moves on, beside_syncs: the oldest of the others} #}
{% macro _needed_from(changelog, keep, keep_days, without_syncs) %}
    {%- set head = changelog.head -%}
    {%- set without_syncs = [without_syncs] if without_syncs is string else without_syncs -%}
    {%- set needs = [{'why': 'the head', 'snapshot_id': reverse_etl._changed(head)}] -%}
    {%- if keep is not none -%}
        {%- do needs.append({'why': 'keep: ' ~ keep, 'snapshot_id': [head.snapshot_id - keep + 1, 1] | max}) -%}
    {%- endif -%}
    {%- if keep_days is not none -%}
        {%- set then = run_query(reverse_etl._snapshot_of_days(changelog.target, keep_days)).rows[0][0] -%}
        {%- do needs.append({'why': 'keep_days: ' ~ keep_days, 'snapshot_id': [then or 1, 1] | map('int') | max}) -%}
    {%- endif -%}
    {%- set published = reverse_etl._published(changelog.target) -%}
    {%- if published is not none and reverse_etl._is_still_published(changelog.node, published) -%}
        {%- do needs.append({'why': 'the published view' ~ (' ' ~ published.view if published.view else ''), 'snapshot_id': published.snapshot_id}) -%}
    {%- endif -%}
    {%- set of_syncs = [] -%}
    {%- set syncs = reverse_etl._syncs_over(changelog) -%}
    {%- set known = (syncs | map(attribute='sync') | list) + (syncs | map(attribute='sync_id') | list) -%}
    {%- for name in without_syncs if name not in known -%}
        {%- do reverse_etl._operation_refuse('prune', changelog.name, "without_syncs: '" ~ name ~ "'", 'a sync over this changelog in the ledger (' ~ (syncs | map(attribute='sync') | unique | join(', ') or 'there is none') ~ ')', 'correct --args') -%}
    {%- endfor -%}
    {%- for name in without_syncs if name in known -%}
        {%- set ids = [] -%}
        {%- for sync in syncs if sync.sync == name and not sync.is_asked -%}{%- do ids.append(sync.sync_id) -%}{%- endfor -%}
        {#- It had another destination or object before: given up by its name, the present position would go, too. -#}
        {%- if ids | length > 1 -%}
            {%- do reverse_etl._operation_refuse('prune', changelog.name, "without_syncs: '" ~ name ~ "', the name of " ~ ids | length ~ ' positions', 'ids of those that are gone (' ~ ids | join(', ') ~ '; dbt-reverse-etl status --json has the present one as sync_id)', 'correct --args') -%}
        {%- endif -%}
    {%- endfor -%}
    {%- for sync in syncs if sync.sync not in without_syncs and sync.sync_id not in without_syncs -%}
        {%- set place = ('an adopt that was asked for of ' if sync.is_asked else '') ~ 'the sync ' ~ sync.sync ~ ' (' ~ sync.sync_id ~ ')' -%}
        {%- if sync.is_elsewhere -%}
            {%- do needs.append({'why': 'the sync with the id ' ~ sync.sync_id ~ ', whose runs are in another ledger (bring that back, or leave out with without_syncs what is gone),', 'snapshot_id': 1}) -%}
        {%- elif not sync.understood -%}
            {%- do needs.append({'why': place ~ ', whose facts in the ledger are not understood,', 'snapshot_id': 1}) -%}
        {%- elif sync.snapshot_id is not none -%}
            {%- do of_syncs.append({'why': place, 'snapshot_id': sync.snapshot_id | int, 'sync': sync.sync}) -%}
        {%- endif -%}
    {%- endfor -%}
    {%- set oldest = ((needs + of_syncs) | sort(attribute='snapshot_id'))[0] -%}
    {{ return({
        'snapshot_id': oldest.snapshot_id, 'why': oldest.why, 'of_syncs': of_syncs, 'beside_syncs': needs | map(attribute='snapshot_id') | min,
    }) }}
{% endmacro %}


{# Those in the ledger, and those that the changelog's marks name and no run here: {sync_id, sync, snapshot_id, understood, is_asked, is_elsewhere} #}
{% macro _syncs_over(changelog) %}
    {%- set node = graph.nodes['model.reverse_etl.reverse_etl_ledger'] -%}
    {%- set ledger = adapter.get_relation(database=node.database, schema=node.schema, identifier=node.alias) -%}
    {%- set syncs = [] -%}
    {%- set runs = run_query(reverse_etl._newest_runs(ledger)).rows if ledger is not none else [] -%}
    {%- if ledger is not none -%}
        {%- for row in run_query(reverse_etl.snapshots_needed(ledger, changelog.head.changelog_uuid, runs)).rows if runs -%}
            {%- do syncs.append({'sync_id': row[0], 'sync': row[1], 'snapshot_id': row[2], 'understood': row[3]}) -%}
        {%- endfor -%}
        {%- for row in run_query(reverse_etl.adopts_asked(ledger, changelog.head.changelog_uuid)).rows -%}
            {%- do syncs.append({'sync_id': row[0], 'sync': row[1], 'snapshot_id': row[2], 'understood': true, 'is_asked': true}) -%}
        {%- endfor -%}
    {%- endif -%}
    {%- set known = [] -%}
    {%- for row in runs -%}{%- do known.append(row[0]) -%}{%- endfor -%}
    {#- A ledger that was lost, moved or is another target's would else let go of what their positions need. -#}
    {%- for row in run_query("select distinct _header.label from " ~ changelog.target ~ " where _snapshot_id is null and _change = 'ledger' order by 1").rows if row[0] not in known -%}
        {%- do syncs.append({'sync_id': row[0], 'sync': row[0], 'snapshot_id': 1, 'understood': true, 'is_elsewhere': true}) -%}
    {%- endfor -%}
    {{ return(syncs) }}
{% endmacro %}


{# The newest full image at or before a snapshot: its header tells. None that holds what was undone, or the labels before it were lost. #}
{% macro _full_image_at(target, snapshot_id, undone) %}
    {%- if not undone -%}
        {{ return(run_query(
            "select coalesce(max(_header.base), 1) from " ~ target ~ " where _change in ('snapshot', 'pruned') and _snapshot_id <= " ~ snapshot_id
        ).rows[0][0] | int) }}
    {%- endif -%}
    {{ return(run_query(
        'select coalesce(max(_snapshot_id), 1) from (select *, max(if(_reverse_etl_restarts, _snapshot_id, 0)) over so_far as _restart, max(if(_reverse_etl_live, 0, _snapshot_id)) over so_far as _undone from '
        ~ reverse_etl._label_joined(target) ~ " where _change in ('snapshot', 'pruned') window so_far as (order by _snapshot_id)) where _change = 'snapshot' and _header.base = _snapshot_id"
        ~ ' and _undone <= _restart and _snapshot_id <= ' ~ snapshot_id
    ).rows[0][0] | int) }}
{% endmacro %}


{# What lies below a full image and is no savepoint: {snapshots, text, savepoints: ids of those that stay} #}
{% macro _prunable(target, base) %}
    {%- set kept = reverse_etl._savepoints(target) -%}
    {%- set row = run_query(
        "select count_if(_change = 'snapshot'), count(*), min(_snapshot_id), max(_snapshot_id) from " ~ target ~ ' where ' ~ reverse_etl._below(base, kept.values())
    ).rows[0] -%}
    {%- set stay = [] -%}
    {%- for name, id in kept.items() if id < base -%}{%- do stay.append(name) -%}{%- endfor -%}
    {{ return({
        'snapshots': row[0] | int, 'savepoints': kept.values() | list,
        'text': row[0] ~ ' snapshots (' ~ row[2] ~ ' to ' ~ row[3] ~ '), ' ~ row[1] ~ ' rows' ~ ('; the savepoints ' ~ stay | join(', ') ~ ' stay' if stay else ''),
    }) }}
{% endmacro %}

{# A tombstone outlives its snapshot: a feed may bring an event about a key that was deleted or rolled back long ago. #}
{% macro _below(base, savepoints, prefix='') -%}
    {{ prefix }}_snapshot_id < {{ base }} and {{ prefix }}_change not in ('pruned', 'tombstone') {%- if savepoints %} and {{ prefix }}_snapshot_id not in ({{ savepoints | join(', ') }}){% endif -%}
{%- endmacro %}


{#
  One commit. Files in which nothing is left are dropped. What a header says of keys and inputs goes with the rows. The range is a literal, so that
  files above it are not touched, and captures, which only append, go on meanwhile.
#}
{% macro _remove_below(target, base, savepoints) %}
    {%- call statement('prune') -%}
        merge into {{ target }} t
        using (select true as _any) s
        on {{ reverse_etl._below(base, savepoints, 't.') }}
        when matched and t._change = 'snapshot' then update set
            t._change = 'pruned', t._header.base = {{ base }}L, t._header.savepoint = null, t._header.quarantined = null, t._header.positions = null
        when matched then delete
    {%- endcall -%}
{% endmacro %}
