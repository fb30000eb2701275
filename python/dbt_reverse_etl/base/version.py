"""The version of this package."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("dbt-reverse-etl")
except PackageNotFoundError:  # run from a source tree that is not installed
    VERSION = "0"
