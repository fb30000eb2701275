"""What servers and poolers say, in words, and which servers are never written to: without a server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import psycopg
import pyarrow as pa
import pymysql
import pytest

from dbt_reverse_etl.base.errors import DestinationError
from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.sinks.sql.checks import other_case
from dbt_reverse_etl.sinks.sql.dialects.mysql import session as mysql
from dbt_reverse_etl.sinks.sql.dialects.mysql.sink import MysqlSink
from dbt_reverse_etl.sinks.sql.dialects.mysql.table import read_table
from dbt_reverse_etl.sinks.sql.dialects.postgres import rights
from dbt_reverse_etl.sinks.sql.dialects.postgres import session as postgres
from dbt_reverse_etl.sinks.sql.dialects.postgres.sink import PostgresDialect, PostgresSink
from dbt_reverse_etl.sinks.sql.dialects.postgres.table import PostgresColumn, may_fill
from dbt_reverse_etl.sinks.sql.rights import ALL, Need
from dbt_reverse_etl.sinks.sql.settings import MysqlSettings, PostgresSettings
from dbt_reverse_etl.sinks.sql.table import Name
from tests.support.outcomes import FATAL, RETRYABLE
from tests.support.sinks.people import a_task

PLACE = {"host": "db.example.com", "database": "crm", "user": "crm_push.abcdef"}
NOWHERE = {"host": "127.0.0.1", "port": 1, "database": "crm", "user": "crm", "connect_timeout": 2}


class Server:
    """A connection to a server that answers each statement with one row."""

    def __init__(
        self, answers: dict[str, tuple[Any, ...]], version: int = 160_000, encoding: str | None = None
    ) -> None:
        self.answers, self.said, self.closed, self.open = answers, list[str](), False, True
        self.info = SimpleNamespace(server_version=version, parameter_status=lambda _name: encoding)

    def execute(self, statement: str | bytes, _values: Any = None) -> Server:
        self.said.append(statement.decode() if isinstance(statement, bytes) else statement)
        return self

    def cursor(self) -> Server:
        return self

    def fetchone(self) -> tuple[Any, ...] | None:
        return next((row for part, row in self.answers.items() if part in self.said[-1]), None)

    def fetchall(self) -> list[tuple[Any, ...]]:
        return []

    def close(self) -> None:
        self.closed = True


UNFIT = [
    (110_022, "UTF8", "Postgres 11"),
    (160_000, "SQL_ASCII", "encoding SQL_ASCII"),
    (160_000, "LATIN1", "encoding LATIN1"),
]


@pytest.mark.guarantee("Postgres")
@pytest.mark.parametrize(("version", "encoding", "words"), UNFIT)
def test_a_push_to_a_server_that_is_too_old_or_lacks_characters_is_refused_before_any_statement(
    version: int, encoding: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server({}, version, encoding)
    monkeypatch.setattr(PostgresDialect, "connect", lambda _self, _mode: server)
    with pytest.raises(DestinationError, match=words):
        PostgresSink(PostgresSettings.model_validate(PLACE)).open(a_task())
    assert server.said == []


@pytest.mark.parametrize(("version", "encoding"), [(120_000, "UTF8"), (0, None)])
def test_a_server_that_fits_or_whose_pooler_does_not_name_it_is_not_refused(version: int, encoding: str | None) -> None:
    dialect = PostgresDialect(PostgresSettings.model_validate(PLACE))
    assert dialect.unfit_server(Server({}, version, encoding)) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("version", ["5.7.44-log", "10.4.34-MariaDB"])
def test_a_push_to_a_mysql_or_mariadb_that_is_too_old_is_refused_by_the_first_statement(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server({"VERSION()": (version,)})
    sink = MysqlSink(MysqlSettings.model_validate(PLACE))
    monkeypatch.setattr(sink._dialect, "connect", lambda _mode: server)
    with pytest.raises(DestinationError, match=f"version {version}"):
        sink.open(a_task())
    assert server.said == ["SELECT VERSION()"]


@pytest.mark.parametrize("version", ["8.0.36", "10.5.4-MariaDB-log", "11.4.2-MariaDB"])
def test_a_mysql_or_mariadb_that_is_new_enough_is_not_refused(version: str) -> None:
    dialect = MysqlSink(MysqlSettings.model_validate(PLACE))._dialect
    assert dialect.unfit_server(Server({"VERSION()": (version,)})) is None


def test_a_row_that_is_too_large_for_its_table_is_at_fault_itself_and_a_table_that_cannot_be_made_stops_the_sync() -> (
    None
):
    error = pymysql.err.OperationalError(1118, "Row size too large (> 8126). Changing some columns to TEXT ...")
    assert mysql.row_is_at_fault(error)
    assert mysql.failure(error) == (FATAL, "the row is too large for its table (1118)")


def test_an_auto_increment_column_without_a_value_left_is_named_with_what_to_do() -> None:
    error = pymysql.err.InternalError(1467, "Failed to read auto-increment value from storage engine")
    assert mysql.failure(error) == (FATAL, "no value is left for the AUTO_INCREMENT column (1467): make it bigint")


def test_an_ambiguous_column_is_no_fault_of_a_row_though_its_class_is_that_of_constraints() -> None:
    for code, is_at_fault in ((1052, False), (1048, True)):
        error = pymysql.err.IntegrityError(code, "of the server")
        error.sqlstate = "23000"  # type: ignore[attr-defined]
        assert mysql.row_is_at_fault(error) is is_at_fault
    assert mysql.failure(pymysql.err.IntegrityError(1052, "of the server"))[0] is FATAL


@pytest.mark.parametrize(("code", "setting"), [(1969, "max_statement_time"), (3024, "max_execution_time")])
def test_a_statement_that_the_server_ended_is_tried_again_and_the_words_name_the_setting(
    code: int, setting: str
) -> None:
    outcome, reason = mysql.failure(pymysql.err.OperationalError(code, "Query execution was interrupted"))
    assert outcome is RETRYABLE
    assert f"({code})" in reason
    assert setting in reason


@pytest.mark.parametrize(
    ("states", "is_replica"),
    [((0, 0), False), ((1, 0), True), ((0, 1), True), (("OFF", 0), False), (("ON", 0), True), (("NO_LOCK", 0), True)],
)
def test_a_replica_is_known_by_a_number_and_by_a_word(states: tuple[Any, ...], is_replica: bool) -> None:
    dialect = MysqlSink(MysqlSettings.model_validate(PLACE))._dialect
    wrong = dialect.server_problem(Server({"@@read_only": states}))
    assert (wrong is not None) is is_replica


@pytest.mark.parametrize(("kind", "words"), [("SYSTEM VERSIONED", "a system-versioned table"), ("VIEW", "view")])
def test_a_system_versioned_table_is_not_called_a_view(kind: str, words: str) -> None:
    table = read_table(Server({"TABLE_TYPE": (kind, "InnoDB")}), Name("crm", "people", "`"))  # type: ignore[arg-type]
    assert table is not None
    assert table.wrong is not None
    assert words in table.wrong[0]


AT = 'connection failed: connection to server at "aws-0.pooler.example.com" (1.2.3.4), port 6543 failed: '
FULL = "the server has no free connection"
GSSAPI = "GSSAPI continuation error: Unspecified GSS failure.  Minor code may provide more information: "
ANSWERS = [
    ("FATAL:  Tenant or user not found", FATAL, "the pooler knows no such project or user"),
    ("FATAL:  (ENOTFOUND) tenant/user crm.abc not found", FATAL, "the pooler knows no such project or user"),
    ("FATAL:  no such database: crm", FATAL, "no such database"),
    ("FATAL:  no such database: authentication failed", FATAL, "no such database"),
    ("FATAL:  no such user: authentication failed", FATAL, "no such user"),
    ("FATAL:  no such user", FATAL, "no such user"),
    ("ERROR:  Endpoint ID is not specified. Either please upgrade", FATAL, "the server finds the database by its host"),
    ("FATAL:  sorry, too many clients already", RETRYABLE, FULL),
    ('FATAL:  too many connections for role "crm"', RETRYABLE, FULL),
    ("FATAL:  remaining connection slots are reserved for roles with the SUPERUSER attribute", RETRYABLE, FULL),
    ("FATAL:  no more connections allowed (max_client_conn)", RETRYABLE, FULL),
    ("FATAL:  MaxClientsInSessionMode: max clients reached", RETRYABLE, FULL),
    ("FATAL:  Max client connections reached", RETRYABLE, FULL),
    ("could not fork new process for connection: Resource temporarily unavailable", RETRYABLE, FULL),
    ("server sent an error response during SSL exchange", RETRYABLE, FULL),
    ("SSL error: wrong version number", FATAL, "TLS failed"),
    (f"{GSSAPI}Cannot contact any KDC for realm 'EXAMPLE.COM'", RETRYABLE, "the Kerberos login failed: no KDC"),
    (f"{GSSAPI}Cannot resolve servers for KDC in realm 'EXAMPLE.COM'", RETRYABLE, "the Kerberos login failed: no KDC"),
    (f"{GSSAPI}unable to reach any KDC in realm EXAMPLE.COM", RETRYABLE, "the Kerberos login failed: no KDC"),
    (f"{GSSAPI}Ticket expired", FATAL, "the Kerberos login failed: look at its ticket"),
    (f"{GSSAPI}Cannot find key for postgres/h@KDC.EXAMPLE.COM", FATAL, "the Kerberos login failed: look at"),
    ("Kerberos 5 authentication not supported", FATAL, "the server asks for a login in a way that cannot be used"),
    ("error received from server in SCRAM exchange: invalid-proof", FATAL, "the password or the user is wrong"),
    ("error received from server in SCRAM exchange: other-error", FATAL, "the server asks for a login in a way"),
    ("incorrect server signature", FATAL, "the server did not prove that it knows the password"),
    ("authentication method 13 not supported", FATAL, "the server asks for a login in a way that cannot be used"),
    ('certificate does not match private key file "/k"', FATAL, "the key of the client certificate cannot be used"),
    ("Connection refused", RETRYABLE, "the server cannot be reached"),
]


@pytest.mark.parametrize(("text", "outcome", "words"), ANSWERS)
def test_what_a_server_refuses_for_good_stops_the_sync_and_a_full_one_is_tried_again(
    text: str, outcome: Outcome, words: str
) -> None:
    found, reason = postgres.connect_failure(AT + text)
    assert (found, reason[: len(words)]) == (outcome, words)


NO_LOGIN = {
    'FATAL:  password authentication failed for user "crm"': "correct user and password in profiles.yml",
    "error received from server in SCRAM exchange: invalid-proof": "correct user and password in profiles.yml",
    "fe_sendauth: no password supplied": "correct user and password in profiles.yml",
    'FATAL:  role "crm" does not exist': "correct user and password in profiles.yml",
    'FATAL:  database "crm" does not exist': "create the database, or correct database in profiles.yml",
    'FATAL:  permission denied for database "crm"': "correct database in profiles.yml, or grant the user the right to connect",
    **dict.fromkeys(
        (
            "Connection refused",
            "Verbindungsaufbau abgelehnt",
            "Network is unreachable",
            "Host is unreachable",
            "Connection timed out",
            "could not receive data from server: Connection reset by peer",
            "server closed the connection unexpectedly",
            "Permission denied",
            "failed to resolve host 'db.example'",
            "could not translate host name",
        ),
        "start the server, or correct host and port in profiles.yml",
    ),
    **dict.fromkeys(
        (
            'private key file "/k" has group or world access; file must have permissions u=rw (0600) or less',
            'private key file "/k" is not a regular file',
            'could not load private key file "/k": unsupported',
            'certificate present, but not private key file "/k"',
        ),
        "name as sslkey the key of sslcert without a passphrase, in a file that only its owner may read (mode 0600)",
    ),
    # The server answered, so host and port are right.
    "authentication method 13 not supported": None,
    "Kerberos 5 authentication not supported": None,
    "GSSAPI continuation error: No credentials were supplied": None,
    f"{GSSAPI}Cannot contact any KDC for realm 'EXAMPLE.COM'": None,
    "incorrect server signature": None,
    "none of the server's SASL authentication mechanisms are supported": None,
    'malformed SCRAM message (attribute "r" expected)': None,
    "could not fork new process for connection: Resource temporarily unavailable": None,
    "server sent an error response during SSL exchange": None,
    "FATAL:  the database system is starting up": None,
    "FATAL:  das Datenbanksystem startet": None,
    "ВАЖНО:  система баз данных останавливается": None,
    "FATAL:  pgbouncer cannot connect to server": None,
    "FATAL:  no pg_hba.conf entry": None,
}
NO_LOGIN_MYSQL = {
    1045: "correct user and password in profiles.yml",
    1698: "correct user and password in profiles.yml",
    1049: "create the database, or correct database in profiles.yml",
    2003: "start the server, or correct host and port in profiles.yml",
    1044: "correct database in profiles.yml, or grant the user the right to connect",
    2013: None,
}


@pytest.mark.parametrize(("text", "words"), NO_LOGIN.items())
def test_a_login_that_fails_names_the_setting_to_correct(text: str, words: str | None) -> None:
    assert postgres.login_step(postgres.NotConnected(AT + text)) == words


@pytest.mark.parametrize(("number", "words"), NO_LOGIN_MYSQL.items())
def test_a_login_that_mysql_refuses_names_the_setting_to_correct(number: int, words: str | None) -> None:
    assert mysql.login_step(pymysql.err.OperationalError(number, "of the server")) == words


@pytest.mark.parametrize(
    "sink", [PostgresSink(PostgresSettings.model_validate(NOWHERE)), MysqlSink(MysqlSettings.model_validate(NOWHERE))]
)
def test_check_of_a_server_that_does_not_answer_names_host_and_port(sink: PostgresSink | MysqlSink) -> None:
    with pytest.raises(DestinationError, match="Next: start the server, or correct host and port in"):
        sink.check()


def test_a_batch_that_took_too_long_is_tried_again_and_the_words_name_the_setting() -> None:
    outcome, reason = postgres.failure(psycopg.errors.QueryCanceled())
    assert outcome is RETRYABLE
    assert reason.startswith("query canceled (57014)")
    assert "statement_timeout" in reason


@pytest.mark.parametrize(
    ("line", "state", "is_raised"),
    [
        ("PL/pgSQL function f() line 1 at RAISE", "42501", True),
        ("PL/pgSQL 函数f()的第1行, 在RAISE处", "42501", True),
        ("PL/pgSQL function f() line 1 at SQL statement", "42501", False),
        ("PL/pgSQL function f() line 1 at RAISE", "40001", False),
        ("PL/pgSQL function f() line 1 at RAISE", "57P01", True),
        ("PL/pgSQL function f() line 1 at RAISE", "57014", True),
        ("PL/pgSQL function f() line 1 at RAISE", "40P01", False),
        ("PL/pgSQL function f() line 1 at RAISE", "55P03", False),
        # What a trigger passes on of another server.
        ("PL/pgSQL function f() line 1 at RAISE", "08001", False),
        ("PL/pgSQL function f() line 1 at RAISE", "08006", False),
        ("PL/pgSQL function f() line 1 at RAISE", "53300", False),
        ("PL/pgSQL function f() line 1 at RAISE", "57P03", False),
        ('PL/pgSQL function "Log_It"(integer) line 1 at RAISE', "42501", True),
        ('PL/pgSQL function "log_RAISE"() line 1 at SQL statement', "42501", False),
        ("SQL statement \"INSERT INTO FUNDRAISERS VALUES ('RAISE of PL/pgSQL')\"", "42501", False),
        ('SQL statement "INSERT INTO "FUNDRAISERS"', "42501", False),
        ("SQL-Anweisung »INSERT INTO FUNDRAISERS VALUES (1)«", "42501", False),
    ],
)
def test_what_a_trigger_raises_is_of_a_row_in_each_language_of_the_server_unless_it_asks_for_a_repeat(
    line: str, state: str, is_raised: bool
) -> None:
    context = f"{line}\nPL/pgSQL function g() line 1 at RAISE"
    error = SimpleNamespace(diag=SimpleNamespace(context=context), sqlstate=state)
    assert postgres.is_raised(error) is is_raised  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("source", "fills"),
    [
        ("BEGIN new.filled := 1; RETURN new; END", True),
        ("BEGIN NEW := helper(NEW); RETURN NEW; END", True),
        ("BEGIN new = helper(new); RETURN new; END", True),
        ("BEGIN SELECT * INTO STRICT new FROM helper(new); RETURN new; END", True),
        ("BEGIN CALL helper(new); RETURN new; END", True),
        ("DECLARE r ALIAS FOR new; BEGIN r := helper(r); RETURN r; END", True),
        ("BEGIN RETURN NEW #= hstore(TG_ARGV[0], '7'); END", True),
        ("DECLARE r people; BEGIN r := helper(new); RETURN r; END", True),
        ("BEGIN SELECT 1 INTO new.other; CALL log(new.id); RETURN new; END", False),
        ("BEGIN new.other := now(); RETURN coalesce(new, old); END", False),
        ("BEGIN IF new IS DISTINCT FROM old THEN RETURN NEW; END IF; RETURN NULL; END", False),
        ("BEGIN -- return early, into new := rows\nRETURN NEW; END", False),
        ("BEGIN /* CALL f(new)\n new := x */ RETURN /* it */ NEW; END", False),
        ("BEGIN IF new.a IS NULL THEN RAISE 'cannot ''return to sender'; END IF; RETURN NEW; END", False),
        ("BEGIN x := E'it\\'s'; NEW := helper(NEW); y := 'a'; RETURN NEW; END", True),
        ("BEGIN PERFORM $x$it's$x$; NEW := helper(NEW); PERFORM 'x'; RETURN NEW; END", True),
        ("BEGIN new.x$y$ := 1; new := helper(new); new.x$y$ := 2; RETURN new; END", True),
        ("BEGIN EXECUTE $$ new := x $$; RETURN NEW; END", False),
        ('BEGIN <<x>> NEW = helper(NEW); "new" := helper("new"); RETURN NEW; END', True),
        ('BEGIN "new" := helper(new); RETURN NEW; END', True),
        ("BEGIN RAISE 'a -- b'; new := helper(new); RETURN new; END", True),
        ("BEGIN IF new = old THEN RETURN NULL; END IF; RETURN  NEW; END", False),
        ("BEGIN IF a THEN new = helper(new); END IF; RETURN new; END", True),
        ("BEGIN RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END; END", False),
        ("BEGIN RETURN CASE WHEN new.a IS NULL THEN helper(new) ELSE NEW END; END", True),
        ("BEGIN RETURN CASE WHEN new.a IS NULL THEN old ELSE new #= helper() END; END", True),
        ('DECLARE "it\'s" people; BEGIN "it\'s" := helper(new); RETURN "it\'s"; END', True),
        ("BEGIN -- sets filled\nRETURN NEW; END", True),
        (None, True),
    ],
)
def test_a_trigger_may_fill_a_column_that_it_names_or_if_it_makes_the_row_as_a_whole(
    source: str | None, fills: bool
) -> None:
    assert may_fill("filled", source) is fills


def test_a_grant_goes_to_the_role_of_the_session_not_to_the_login_of_a_pooler() -> None:
    answers = {"TEMPORARY": (False, "crm", "crm_push"), "has_schema": (True, False), "SELECT c.oid": (7,)}
    server = Server(answers | {"has_table": (False,), "has_any": (False,)})
    found = rights.lacks(server, [Need(Name("public", "people"), "id", ALL, is_made=False)])  # type: ignore[arg-type]
    assert [grant for _, grant in found] == [
        'GRANT SELECT, INSERT, UPDATE, DELETE ON "public"."people" TO "crm_push"',
        'GRANT TEMPORARY ON DATABASE "crm" TO "crm_push"',
    ]


@pytest.mark.parametrize(("name", "written"), [("People", "crm.People"), ("My.People", '"crm"."My.People"')])
def test_an_object_in_another_case_is_named_as_a_sync_writes_it(name: str, written: str) -> None:
    dialect, server = PostgresDialect(PostgresSettings.model_validate(PLACE)), Server({"lower": (name,)})
    wrong = other_case(server, Name("crm", name.lower()), dialect)
    assert wrong is not None
    assert wrong[2].startswith(f"write object: {written}; ")


@pytest.mark.parametrize(
    ("element", "of", "is_kept"),
    [
        ("timestamp", None, True),
        ("timestamp", "UTC", False),
        ("timestamptz", "UTC", True),
        ("timestamptz", None, False),
    ],
)
def test_a_list_of_moments_keeps_its_zone(element: str, of: str | None, is_kept: bool) -> None:
    own = {
        "required": False,
        "nullable": True,
        "writable": True,
        "modifier": -1,
        "category": "A",
        "deterministic": True,
    }
    types = {"type": Name("pg_catalog", f"_{element}"), "element": Name("pg_catalog", element), "element_category": "D"}
    column = PostgresColumn("at", f"_{element}", **own, **types)  # type: ignore[arg-type]
    plain = pa.list_(pa.timestamp("us", of))
    kind = next(kind for kind in PostgresDialect.kinds if kind.has(plain))
    assert kind.fits(column, plain) is is_kept
