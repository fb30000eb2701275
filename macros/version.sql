{# The version of the macros, written into every header row; the runner refuses an incompatible pair. #}
{% macro version() %}0.1.0{% endmacro %}
