{#
  What the sources of a feed share. Whatever new they find is read once, into a table of this run (the input): the capture reads it more than once, and
  its positions are measured on it, whatever the model selects. An input has two columns more than the model sees:
    _input    name of a position: topic/partition, or a path
    _read_to  how far this row leads there; NULL: nowhere
#}

{# Before anything is read: {reading: whether this compiles for a capture, since: positions in the head's header, head: its snapshot id, or 0} #}
{% macro _feed_source(name) %}
    {%- if model.resource_type == 'unit_test' -%}
        {%- do reverse_etl._view_refuse(
            'unit test ' ~ model.name, name ~ '(), which reads from outside of dbt', 'rows in its place',
            'give them in the test: `overrides: {macros: {reverse_etl.' ~ name ~ ': "(select ...)"}}`'
        ) -%}
    {%- endif -%}
    {%- set capture = reverse_etl._own_block(config).get('capture') -%}
    {%- set strategy = capture.strategy if capture is mapping else capture -%}
    {%- if config.get('materialized') != 'changelog' or strategy != 'feed' -%}
        {%- do reverse_etl._view_refuse(
            name ~ ' in model ' ~ model.name, 'it outside a changelog with the strategy feed', 'meta.reverse_etl.capture: {strategy: feed, ...}',
            'only such a changelog remembers what was read; make this model one, and read it from others'
        ) -%}
    {%- endif -%}
    {%- if flags.WHICH not in ('run', 'build', 'retry') -%}{{ return({'reading': false, 'since': {}, 'head': 0}) }}{%- endif -%}
    {%- set target = reverse_etl._existing_changelog(this.incorporate(type='table')) -%}
    {%- set head = reverse_etl._head(target) if target is not none else none -%}
    {{ return({'reading': not head.frozen and not reverse_etl._is_partial(), 'since': head.positions if head is not none else {}, 'head': head.snapshot_id if head is not none else 0}) }}
{% endmacro %}


{# The input, made once for each different `source`. Returns its relation. #}
{% macro _feed_input(kind, source, query) %}
    {%- set input = reverse_etl._feed_relation(kind, source) -%}
    {%- do run_query('create table if not exists ' ~ input ~ ' using ' ~ reverse_etl._private_format({'dbt_reverse_etl.topic': reverse_etl._dotted(source[0])} if kind == 'kafka' else {}) ~ ' as ' ~ query) -%}
    {{ return(input) }}
{% endmacro %}

{% macro _feed_relation(kind, source) %}
    {{ return(reverse_etl._temporary_relation(this, '__' ~ kind ~ '_', local_md5(invocation_id ~ '.' ~ model.unique_id ~ '.' ~ tojson(source)))) }}
{% endmacro %}

{# The input's rows as the model reads them. The comment keeps after which snapshot they were read (see _check_read_after). #}
{% macro _feed_rows(input, head, helpers=[]) -%}
    (select * except ({{ (['_input', '_read_to'] + helpers) | join(', ') }}) from {{ input }} /* read after snapshot {{ head }} */)
{%- endmacro %}


{# What was read from the positions of another head may be older than what that head holds, and its positions lie before those of the head. #}
{% macro _check_read_after(head) %}
    {%- set newest = head.snapshot_id if head is not none else 0 -%}
    {%- for snapshot_id in modules.re.findall('/[*] read after snapshot ([0-9]+) [*]/', model.compiled_code) if snapshot_id | int != newest -%}
        {%- do reverse_etl._drop_feed_inputs() -%}
        {{ exceptions.raise_compiler_error(
            'changelog ' ~ model.name ~ ': found snapshot ' ~ newest ~ ' as its newest, while this run read what is new after snapshot ' ~ snapshot_id
            ~ ': another run captured meanwhile, or an operation changed the changelog; expected one at a time; nothing of this run was captured. Next: run it again'
        ) }}
    {%- endfor -%}
{% endmacro %}


{# The inputs that the model's query names. #}
{% macro _feed_inputs(kind) %}
    {%- set inputs = [] -%}
    {%- for identifier in modules.re.findall(modules.re.escape(this.identifier) ~ '__' ~ kind ~ '_[0-9]{14}_[0-9a-f]{8}', model.compiled_code) | unique -%}
        {%- do inputs.append(this.incorporate(path={'identifier': identifier}, type='table')) -%}
    {%- endfor -%}
    {{ return(inputs) }}
{% endmacro %}


{% macro _drop_feed_inputs() %}
    {%- for input in reverse_etl._feed_inputs('kafka') + reverse_etl._feed_inputs('files') -%}{%- do adapter.drop_relation(input) -%}{%- endfor -%}
{% endmacro %}


{# The aggregate that gives the positions of inputs as a JSON object; for Kafka with the time of this run, if there was anything to read. #}
{% macro _feed_positions(kind, inputs) -%}
    (select to_json(map_from_entries(collect_list(struct(_input, _read_to)))) from (
        select _input, max(_read_to) as _read_to from (
        {%- for input in inputs %}
            select _input, _read_to from {{ input }}
            {%- if kind == 'kafka' %} union all select regexp_extract(_input, '^(.*)/', 1) || '/read_at', {{ (run_started_at.timestamp() * 1000) | int }} from {{ input }}{% endif %}
            {%- if not loop.last %} union all {% endif %}
        {%- endfor %}
        ) where _read_to is not null group by 1
    ))
{%- endmacro %}


{# Whether an option is a secret by its name, which in Azure's case has the host of an account after it. #}
{% macro _is_secret(name) %}
    {{ return(modules.re.search('(?i)(password|passphrase|secret|secret(access)?key|token|credentials|[.]key)(([.][\\w-]+)+[.](dfs|blob)[.].*)?$|[.]sas[.]', name) is not none) }}
{% endmacro %}


{# Options of a data source, as SQL. #}
{% macro _source_options(options) -%}
    options ({% for name, value in options.items() %}{{ reverse_etl._quote(name) }} {{ reverse_etl._string(value) }}{{ ', ' if not loop.last }}{% endfor %})
{%- endmacro %}
