{#
  What the ledger says of the deliveries of one sync from one changelog, as CTEs: acks (where a position moved, an adopted one among them), left_out
  (the rows that an acknowledgement leaves out), claims, and endings (which fact took which claim out of which buckets: `_ends`).
    changelog   SQL of its uuid
    known_from  fence of the first run whose facts count
    late        whether facts count that a run recorded after the next one had begun. Clocks differ: those of a run that ended are late only if the next
                run took over what they close
#}
{% macro _acknowledged(ledger, sync_id, changelog, known_from=0, late=false) -%}
facts as (
    select *, from_json(body, '{{ reverse_etl._acknowledged_type() }}') as said
    from {{ ledger }}
    where sync_id = {{ reverse_etl._string(sync_id) }} and fence >= {{ known_from }}
),
runs as (
    select fence, max(said.changelog) as changelog, max(said.status) = 'adopt' as adopted,
        lead(min(recorded_at)) over (order by fence) as next_run_at,
        lead(flatten(collect_list(said.claims) filter (where fact in ('run_started', 'claims_settled')))) over (order by fence) as next_claims,
        bool_or(fact = 'run_finished') as ended
    from facts where fact in ('run_started', 'run_finished', 'claims_settled')
    group by fence
),
counted as (
    select facts.*, runs.adopted from facts inner join runs on runs.fence = facts.fence
    where runs.changelog = {{ changelog }}
        {%- if not late %}
        and (facts.fact <> 'wave_acknowledged' or runs.next_run_at is null or facts.recorded_at <= runs.next_run_at
            or (runs.ended and not coalesce(exists(runs.next_claims, one -> one.id = element_at(facts.said.closes, -1)), false)))
        {%- endif %}
),
{# Spark plans a query once for each place that names it: what reads the ledger names it as seldom as it can. #}
acks as (
    select fence, seq, recorded_at as at, fact, left_out, inline(moved)
    from (
        select *, if(fact = 'wave_acknowledged', said.undelivered, null) as left_out,
            case fact when 'wave_acknowledged' then array(struct(said.lo, said.hi, said.snapshot, said.spec)) when 'claims_settled' then said.delivered else said.positions end as moved
        from counted where fact in ('wave_acknowledged', 'claims_settled') or (fact = 'run_started' and adopted)
    )
),
left_out as (
    select fence, seq, at, snapshot, explode(left_out) as entry from acks
),
claims as (
    select claim.id as id, min(claim.lo) as lo, max(claim.hi) as hi, min_by(claim.snapshot, fence) as snapshot, min_by(claim.spec, fence) as spec,
        bool_or(coalesce(claim.everything, false)) as everything, bool_or(coalesce(claim.ordered, false)) as ordered, min(fence) as fence, min(recorded_at) as at,
        {# A doubt is recorded by a run of before, beside the waves of the newest one. #}
        min(struct(fence, if(fact = 'doubt_recorded', 1000000000L, seq) as seq)).seq as seq
    from (select fence, fact, seq, recorded_at, explode(said.claims) as claim from counted)
    group by claim.id
),
endings as (
    select fence, fact, recorded_at as at, explode(if(fact = 'run_finished', said.releases, said.closes)) as id, coalesce(said.lo, 0) as lo, coalesce(said.hi, 65536) as hi, said.claims as kept
    from counted where fact in ('wave_acknowledged', 'claims_settled', 'doubt_recorded', 'run_finished')
)
{%- endmacro %}


{# Whether an ending is one of a claim in a bucket. What a settlement leaves in doubt it states again, under the id of the claim. #}
{% macro _ends(ending, claim, bucket) -%}
    {{ ending }}.id = {{ claim }}.id and {{ bucket }} >= {{ ending }}.lo and {{ bucket }} < {{ ending }}.hi
    and not coalesce(exists({{ ending }}.kept, one -> one.id = {{ ending }}.id and {{ bucket }} >= one.lo and {{ bucket }} < one.hi), false)
{%- endmacro %}


{% macro _acknowledged_type() -%}
    {%- set range = 'lo:bigint,hi:bigint,snapshot:bigint,spec:string' -%}
    changelog string, status string, lo bigint, hi bigint, snapshot bigint, spec string, closes array<string>, releases array<string>,
    positions array<struct<{{ range }}>>, delivered array<struct<{{ range }}>>,
    claims array<struct<id:string,{{ range }},everything:boolean,ordered:boolean>>, undelivered array<struct<key:string,doubt:boolean,maybe:boolean>>
{%- endmacro %}


{#
  The specs of what a sync delivered, or may have delivered, from one changelog, as {id, text, snapshot: the newest of it}: one of a changelog before may name columns that this one has not.
  Args as in `_acknowledged`.
#}
{% macro specs_of(ledger, sync_id, changelog, known_from) -%}
with {{ reverse_etl._acknowledged(ledger, sync_id, changelog, known_from, late=true) }}
{#- What else a text says, such as how the key was written, may differ between runs that sent the same. #}
select id, any_value(text) as text, max(snapshot) as snapshot
from (select distinct explode(from_json(body, 'specs map<string,string>').specs) as (id, text) from {{ ledger }} where sync_id = {{ reverse_etl._string(sync_id) }})
inner join (select spec, snapshot from acks union all select spec, snapshot from claims) on spec = id
group by id
order by id
{%- endmacro %}


{# Spec -> hash of what the destination sees of a row through it. #}
{% macro _delivered_hashes(specs) -%}
    map({% for one in specs %}{{ reverse_etl._string(one.id) }}, {{ reverse_etl._projection(one.fields, one.where) }}{{ ', ' if not loop.last }}{% else %}'', cast(null as bigint){% endfor %})
{%- endmacro %}


{% macro _delivered_mode(specs, spec) -%}
    {%- if not specs -%}cast(null as string){%- else -%}
    case {{ spec }}{% for one in specs %} when {{ reverse_etl._string(one.id) }} then {{ reverse_etl._string(one.mode) }}{% endfor %} end
    {%- endif -%}
{%- endmacro %}
