{#
  What came to a Kafka topic since the last capture, to stand behind `from` in a changelog with the strategy feed: key, value (binary), _topic, _partition,
  _offset, timestamp. The first capture reads the topic from its beginning, and so is a partition that was added later.
    options  of Spark's Kafka source, kafka.bootstrap.servers at least; a secret only as ${environment:NAME}, ${file:/path:name} or ${directory:/path:file}
    gaps     the topic is compacted, or written in transactions: offsets may be missing
#}
{% macro kafka_topic(topic, options={}, gaps=false) -%}
    {%- if not execute -%}{{ return('(select 1)') }}{%- endif -%}
    {%- do reverse_etl._check_kafka_options(topic, options) -%}
    {%- set source = reverse_etl._feed_source('kafka_topic') -%}
    {%- if not source.reading -%}
        {{ return(
            "(select cast(null as binary) as key, cast(null as binary) as value, '' as _topic, 0 as _partition, 0L as _offset, cast(null as timestamp) as timestamp where false)"
        ) }}
    {%- endif -%}
    {%- set view = reverse_etl._quote(reverse_etl._feed_relation('topic', [topic, options]).identifier) -%}
    {%- set start = reverse_etl._kafka_start(topic, options, gaps, source.since, view) -%}
    {%- do reverse_etl._kafka_view(view, options, start) -%}
    {%- set input = reverse_etl._feed_input('kafka', [topic, options],
        "select key, value, topic as _topic, partition as _partition, offset as _offset, timestamp, concat(topic, '/', partition) as _input, offset + 1 as _read_to from " ~ view
    ) -%}
    {%- do run_query('drop view if exists ' ~ view) -%}
    {{ return(reverse_etl._feed_rows(input, source.head)) }}
{%- endmacro %}


{# Where the read starts: everywhere at the beginning, or at the positions; Spark then wants every partition by name. #}
{% macro _kafka_start(topic, options, gaps, since, view) %}
    {%- set known = {} -%}
    {%- set prefix = 'kafka/' ~ topic ~ '/' -%}
    {%- for name, position in since.items() if name.startswith(prefix) and name[prefix | length:].isdigit() -%}
        {%- do known.update({name[prefix | length:]: position | int}) -%}
    {%- endfor -%}
    {%- if not known -%}{{ return({'subscribe': topic, 'startingOffsets': 'earliest'}) }}{%- endif -%}
    {%- if not gaps and options.get('failOnDataLoss') | string | lower != 'false' -%}
        {%- do reverse_etl._check_kafka_loss(topic, options, known, view) -%}
    {%- endif -%}
    {%- set starts = {} -%}
    {%- do starts.update(known) -%}
    {%- for partition in reverse_etl._kafka_added(topic, options, known, since.get(prefix ~ 'read_at', 0) | int, view) -%}{%- do starts.update({partition: -2}) -%}{%- endfor -%}
    {{ return(reverse_etl._kafka_from(topic, starts)) }}
{% endmacro %}

{% macro _kafka_from(topic, starts) %}
    {%- set partitions = starts | map('int') | sort | list -%}
    {{ return({'assign': tojson({topic: partitions}), 'startingOffsets': tojson({topic: starts})}) }}
{% endmacro %}


{#
  Partitions that are not known yet. Spark does not list partitions, so it is asked for what was written since the last run that read anything began; ten
  minutes allow for clocks that differ. What was written since, with an offset before our position, is in another topic of the same name.
#}
{% macro _kafka_added(topic, options, known, read_at, view) %}
    {%- do reverse_etl._kafka_view(view, options, {'subscribe': topic, 'startingTimestamp': [read_at - 600000, 0] | max, 'startingOffsetsByTimestampStrategy': 'latest', 'failOnDataLoss': 'false'}) -%}
    {%- set added = [] -%}
    {%- for partition, last, written in run_query('select cast(partition as string), max(offset), unix_millis(max(timestamp)) from ' ~ view ~ ' group by 1').rows -%}
        {%- if partition not in known -%}{%- do added.append(partition) -%}
        {%- elif last | int < known[partition] - 1 and read_at and written | int > read_at + 600000 -%}
            {%- do reverse_etl._view_refuse(
                'kafka_topic ' ~ topic ~ ', partition ' ~ partition, 'messages that are newer than the last capture, and offset ' ~ last ~ ' as their last one: the topic was created again',
                'offset ' ~ known[partition] ~ ' or a later one; nothing was captured', 'start over with the operation reset'
            ) -%}
        {%- endif -%}
    {%- endfor -%}
    {{ return(added) }}
{% endmacro %}


{#
  A gap must not pass in silence. Where the last message that was read is still there, none after it is gone. Where it is not, either the topic's retention
  has come just up to our position, or beyond it, or this is another topic of the same name.
#}
{% macro _check_kafka_loss(topic, options, known, view) %}
    {%- set last_read = {} -%}
    {%- for partition, position in known.items() -%}{%- do last_read.update({partition: position - 1}) -%}{%- endfor -%}
    {%- set tolerant = {'failOnDataLoss': 'false'} -%}
    {%- do tolerant.update(reverse_etl._kafka_from(topic, last_read)) -%}
    {%- do tolerant.update({'endingOffsets': tojson({topic: known})}) -%}
    {%- do reverse_etl._kafka_view(view, options, tolerant) -%}
    {%- set present = run_query('select distinct cast(partition as string) from ' ~ view).columns[0].values() -%}
    {%- for partition, position in known.items() if partition not in present -%}
        {%- set earliest = {'failOnDataLoss': 'false'} -%}
        {%- do earliest.update(reverse_etl._kafka_from(topic, {partition: -2})) -%}
        {%- do reverse_etl._kafka_view(view, options, earliest) -%}
        {%- set first = run_query('select offset from ' ~ view ~ ' limit 1').columns[0].values() | map('int') | first -%}
        {%- if first is defined and first != position -%}
            {%- do reverse_etl._view_refuse(
                'kafka_topic ' ~ topic ~ ', partition ' ~ partition,
                ('offset ' ~ first ~ ' as the oldest: what lies before it is gone by the retention of the topic, before it was captured') if first > position
                    else ('older messages, but not offset ' ~ (position - 1) ~ ', which was the last one that was captured: the topic was created again, or is compacted'),
                'offset ' ~ position ~ '; nothing was captured',
                'where the topic is compacted or written in transactions, pass gaps=true; otherwise '
                ~ ("capture more often than messages expire, and now either go on from the oldest message with options={..., 'failOnDataLoss': 'false'}, once, and have the source send all rows again, or "
                    if first > position else '') ~ 'start over with the operation reset'
            ) -%}
        {%- endif -%}
    {%- endfor -%}
{% endmacro %}


{% macro _kafka_view(view, options, more) %}
    {%- set all = {'failOnDataLoss': 'true', 'kafka.isolation.level': 'read_committed', 'kafka.allow.auto.create.topics': 'false'} -%}
    {%- if '${' in options.values() | join -%}
        {%- set providers = {'environment': 'EnvVarConfigProvider', 'file': 'FileConfigProvider', 'directory': 'DirectoryConfigProvider'} -%}
        {%- do all.update({'kafka.config.providers': providers | join(',')}) -%}
        {%- for name, class in providers.items() -%}{%- do all.update({'kafka.config.providers.' ~ name ~ '.class': 'org.apache.kafka.common.config.provider.' ~ class}) -%}{%- endfor -%}
    {%- endif -%}
    {%- do all.update(options) -%}
    {%- do all.update(more) -%}
    {%- do run_query('create or replace temporary view ' ~ view ~ ' using kafka ' ~ reverse_etl._source_options(all)) -%}
{% endmacro %}


{# Options end in SQL, and so in dbt's log and in Spark's plans: a secret is not among them, only the place where Kafka's client finds it. #}
{% macro _check_kafka_options(topic, options) %}
    {%- set where = 'kafka_topic ' ~ topic ~ ': options' -%}
    {%- if topic is not string or not modules.re.fullmatch('[A-Za-z0-9._-]{1,249}', topic) -%}
        {%- do reverse_etl._view_refuse('kafka_topic', "the topic '" ~ topic ~ "'", 'the name of one topic', 'correct it; several topics are several kafka_topic(...), with union all') -%}
    {%- endif -%}
    {%- if not options.get('kafka.bootstrap.servers') -%}
        {%- do reverse_etl._view_refuse(where, 'no kafka.bootstrap.servers', 'host:port, with commas between', "add {'kafka.bootstrap.servers': ...}") -%}
    {%- endif -%}
    {%- for name, value in options.items() -%}
        {%- if modules.re.match('(?i)(subscribe|assign|starting|ending|includeHeaders)', name) -%}
            {%- do reverse_etl._view_refuse(where, name, 'options of the connection and of how the source reads', 'remove it: what is read follows from the positions in the changelog') -%}
        {%- elif modules.re.search('\\$\\{(env|system|spark|sparkconf|hivevar|hiveconf):', value | string) -%}
            {%- do reverse_etl._view_refuse(where, name ~ ' with a reference that Kafka\'s client does not know', '${environment:NAME}, ${file:/path:name} or ${directory:/path:file}', 'write it so') -%}
        {%- elif reverse_etl._is_secret(name) and not (value | string).startswith('${')
            or name.endswith('jaas.config') and modules.re.search('(?i)(password|secret|token)\\w*\\s*=\\s*(?!["\']?\\$\\{)', value | string) -%}
            {%- do reverse_etl._view_refuse(where, name ~ ' with a secret in plain text, which would end in logs and plans', '${environment:NAME}, ${file:/path:name} or ${directory:/path:file}', 'put the secret there, and the reference here') -%}
        {%- endif -%}
    {%- endfor -%}
{% endmacro %}


{# A position names a topic, not its cluster. #}
{% macro _check_one_cluster(inputs) %}
    {%- set topics = [] -%}
    {%- for input in inputs if inputs | length > 1 -%}
        {%- set topic = reverse_etl._undotted(reverse_etl._table_properties(input)['dbt_reverse_etl.topic']) -%}
        {%- if topic in topics -%}
            {%- do reverse_etl._view_refuse('kafka_topic ' ~ topic ~ ' in model ' ~ model.name, 'it read with several options, such as from two clusters', 'one kafka_topic(...) of this name', 'make a changelog for each cluster') -%}
        {%- endif -%}
        {%- do topics.append(topic) -%}
    {%- endfor -%}
{% endmacro %}
