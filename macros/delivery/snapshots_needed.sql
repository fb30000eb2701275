{#
  What each sync over a changelog may still ask of it, folded from its newest run as delivery/position.py does: position, claims, undelivered
  rows' last changes, unfinished runs. One row per sync: sync_id, sync, snapshot_id (null: nothing), understood.
  Position 0 asks for nothing: a first load reads the head. A run that does not say its changelog may be over this one.
    runs  rows of _newest_runs: as literals, so that Delta skips the files of older runs
#}
{% macro snapshots_needed(ledger, changelog_uuid, runs) -%}
with facts as (
    select sync_id, sync, fact, from_json(body, '{{ reverse_etl._needed_type() }}') as body
    from {{ ledger }}
    where {% for run in runs %}sync_id = {{ reverse_etl._string(run[0]) }} and fence = {{ run[1] }}{{ ' or ' if not loop.last }}{% endfor %}
),
syncs as (
    select sync_id, max(nullif(sync, '')) as sync, max(body.changelog) as changelog, bool_and({{ reverse_etl._needed_understood() }}) as understood
    from facts
    group by sync_id
),
waves as (select sync_id, body.lo as lo, body.hi as hi, body.snapshot as snapshot, body.closes as closes from facts where fact = 'wave_acknowledged'),
whole as (select sync_id from waves group by sync_id having sum(hi - lo) = 65536),
settled as (select sync_id, inline(body.delivered) from facts where fact = 'claims_settled'),
replaced as (select sync_id, lo, hi from waves union all select sync_id, lo, hi from settled),
claims as (select sync_id, fact, inline(body.claims) from facts),
-- What a settlement leaves in doubt it states again, under the id of the claim.
ended as (
    select sync_id, id, coalesce(exists(again, one -> one.id = id), false) as is_restated
    from (
        select sync_id, body.claims as again,
            explode(concat(if(fact = 'run_finished', body.releases, array()), if(fact = 'wave_acknowledged', array(), coalesce(body.closes, array())))) as id
        from facts
    )
),
closed as (
    select claims.sync_id, claims.id, claims.lo, claims.hi from (select distinct sync_id, id, lo, hi from claims where fact <> 'doubt_recorded') as claims
    inner join waves on waves.sync_id = claims.sync_id and array_contains(waves.closes, claims.id)
    group by claims.sync_id, claims.id, claims.lo, claims.hi
    having sum(greatest(least(claims.hi, waves.hi) - greatest(claims.lo, waves.lo), 0)) >= claims.hi - claims.lo
),
undelivered as (select sync_id, fact, inline(body.undelivered) from facts where fact in ('run_started', 'wave_acknowledged')),
asked as (
    select sync_id, snapshot from waves
    union all
    select sync_id, snapshot from settled left anti join whole using (sync_id)
    union all
    select sync_id, place.snapshot from (select sync_id, explode(body.positions) as place from facts where fact = 'run_started') left anti join whole using (sync_id)
    union all
    select sync_id, snapshot from claims left anti join closed using (sync_id, id, lo, hi)
    left anti join ended on ended.sync_id = claims.sync_id and ended.id = claims.id and (claims.fact = 'run_started' or not ended.is_restated)
    union all
    select undelivered.sync_id, undelivered.changed from undelivered
    left anti join replaced on undelivered.fact = 'run_started' and replaced.sync_id = undelivered.sync_id
        and undelivered.bucket >= replaced.lo and undelivered.bucket < replaced.hi
    union all
    select sync_id, run.head from (select sync_id, explode(body.abandoned) as run from facts where fact = 'run_started')
    union all
    -- A row that the run cannot deliver may have changed before the positions that are left.
    select sync_id, explode(concat(array(body.head), body.positions.snapshot, body.claims.snapshot, body.undelivered.changed))
    from facts left anti join (select sync_id from facts where fact = 'run_finished') using (sync_id) where fact = 'run_started'
)
select syncs.sync_id, syncs.sync, min(asked.snapshot) as snapshot_id, any_value(syncs.understood) as understood
from syncs
left join asked on asked.sync_id = syncs.sync_id and asked.snapshot > 0
where syncs.changelog = {{ reverse_etl._string(changelog_uuid) }} or coalesce(syncs.changelog, '') = ''
group by syncs.sync_id, syncs.sync
{%- endmacro %}


{# The snapshots at which an `adopt` was asked for that no run has carried out: request, sync, snapshot_id. The run that does has the id of the request. #}
{% macro adopts_asked(ledger, changelog_uuid) -%}
select run_id as request, sync, said.snapshot as snapshot_id
from (select *, from_json(body, 'operation string, changelog string, snapshot bigint') as said from {{ ledger }} where fact = 'request')
left anti join (select run_id from {{ ledger }} where fact = 'run_started') using (run_id)
where said.operation = 'adopt' and said.changelog = {{ reverse_etl._string(changelog_uuid) }}
{%- endmacro %}


{% macro _needed_type() -%}
    {%- set range = 'lo:bigint,hi:bigint,snapshot:bigint' -%}
    changelog string, head bigint, lo bigint, hi bigint, snapshot bigint, closes array<string>, releases array<string>,
    positions array<struct<{{ range }}>>, delivered array<struct<{{ range }}>>, claims array<struct<id:string,{{ range }}>>,
    undelivered array<struct<bucket:bigint,changed:bigint>>, abandoned array<struct<head:bigint>>
{%- endmacro %}


{# Whether a fact says all that its kind has to say; what a newer version might write is not understood. #}
{% macro _needed_understood() -%}
    {%- set said = {
        'run_started': ['changelog', 'head', 'positions', 'claims', 'undelivered', 'abandoned'], 'claims_settled': ['delivered', 'closes', 'claims'],
        'wave_acknowledged': ['lo', 'hi', 'snapshot', 'undelivered', 'closes', 'claims'], 'doubt_recorded': ['closes', 'claims'], 'run_finished': ['releases'],
    } -%}
    case fact when 'heartbeat' then true
    {%- for fact, names in said.items() %} when '{{ fact }}' then {% for name in names %}body.{{ name }} is not null{{ ' and ' if not loop.last }}{% endfor %}{% endfor %}
    else false end
{%- endmacro %}


{# The last snapshot before the first one of these days: a stamp of a clock that was behind makes no snapshot of before. #}
{% macro _snapshot_of_days(changelog, days) -%}
    select coalesce(min(_snapshot_id) filter (where _captured_at > current_timestamp() - interval {{ days }} days) - 1, max(_snapshot_id)) from {{ changelog }}
{%- endmacro %}
