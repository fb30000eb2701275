{#
  The capture: one snapshot of the model's changes, in one atomic commit; with labels, one for each.
    settings -> relation -> head -> the model query, once -> its syncs fit it -> candidate keys -> stage (change-sized) -> keys checked -> commit -> read back
#}
{% materialization changelog, adapter='spark', supported_languages=['sql'] %}
    {%- set settings = reverse_etl._changelog_settings() -%}
    {%- set target = this.incorporate(type='table') -%}
    {%- set existing = reverse_etl._existing_changelog(target) -%}
    {%- set capture_uuid = local_md5(invocation_id ~ '.' ~ model.unique_id) -%}

    {{ run_hooks(pre_hooks) }}

    {%- do reverse_etl._drop_leftovers(target) -%}
    {%- set head = reverse_etl._before_the_labels(reverse_etl._head(target)) if existing else none -%}
    {%- do settings.update({'session': reverse_etl._check_first_session(target) if head is none else head.session}) -%}
    {%- if not head.frozen -%}{%- do reverse_etl._check_read_after(head) -%}{%- endif -%}
    {%- set query = none if head.frozen else reverse_etl._model_query(capture_uuid, settings, head) -%}
    {%- if query is not none -%}{%- do reverse_etl._tell_columns(query.columns) -%}{%- endif -%}
    {%- if not existing -%}
        {%- if reverse_etl._own_block(config).get('publish') -%}{%- do reverse_etl._finish_reset(graph.nodes[model.unique_id]) -%}{%- endif -%}
        {%- do reverse_etl._create_changelog(target, query.columns, settings) -%}
    {%- endif -%}
    {%- if reverse_etl._is_partial() -%}
        {%- set result = {'message': 'no snapshot under --empty or --sample', 'code': '', 'changes': 0} -%}
    {%- elif head.frozen -%}
        {%- set result = reverse_etl._frozen_result(head, reverse_etl._named(model)) -%}
    {%- else -%}
        {%- set columns = reverse_etl._reconcile_columns(target, head, query.columns, settings) -%}
        {%- set result = reverse_etl._capture_model(target, head, columns, query, capture_uuid, settings) -%}
        {%- do reverse_etl._report(result, settings) -%}
    {%- endif -%}
    {%- if existing and should_full_refresh() -%}{%- do result.update({'message': result.message ~ ' (--full-refresh starts nothing over: see the operation reset)'}) -%}{%- endif -%}
    {%- if query is not none -%}{%- do reverse_etl._drop_model_query(query) -%}{%- endif -%}
    {%- do reverse_etl._drop_feed_inputs() -%}

    {%- do reverse_etl._apply_table_properties(target, existing) -%}
    {%- do apply_grants(target, config.get('grants'), should_revoke=should_revoke(existing, full_refresh_mode=false)) -%}
    {%- do reverse_etl._persist_docs(target) -%}
    {{ run_hooks(post_hooks) }}

    {%- do store_raw_result(name='main', message=result.message, code=result.code, rows_affected=result.changes, agate_table=none) -%}
    {{ return({'relations': [target]}) }}
{% endmaterialization %}
