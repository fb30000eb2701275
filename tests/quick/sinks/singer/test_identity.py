"""Which settings of a Singer target tell the place, and which only the login."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dbt_reverse_etl.sinks.singer.settings import SingerSettings
from dbt_reverse_etl.sinks.singer.sink import SingerSink

# As libpq, SQLAlchemy and ODBC write a place and its login.
OTHER_PLACES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"url": "postgresql+psycopg://crm:x@/crm?host=db1"}, {"url": "postgresql+psycopg://crm:x@/crm?host=db2"}),
    ({"url": "postgresql:///crm?password=x&host=db1"}, {"url": "postgresql:///crm?password=x&host=db2"}),
    (
        {"url": "mssql+pyodbc://u:p@/?odbc_connect=SERVER%3Da%3BPWD%3Dx"},
        {"url": "mssql+pyodbc://u:p@/?odbc_connect=SERVER%3Db%3BPWD%3Dx"},
    ),
    ({"dsn": "host=db1 password=x"}, {"dsn": "host=db2 password=x"}),
    *(
        ({"dsn": text.format("a")}, {"dsn": text.format("b")})
        for text in (
            "password=Kq?7x host={}",
            "host={} password='K q?7x'",
            "jdbc:sqlserver://h:1433;password=p?q;databaseName={}",
            "jdbc:mysql://h/crm?password=x&db={}",
            "jdbc:mysql://h/crm?password=x&db={}&sessionVariables=a=1;b=2",
            "file:///x?y=1;password=x&db={}",
            "PWD=x;BlobEndpoint=https://h/c?container={}",
            "jdbc:mysql://(host=h,password=x)/crm?schema={}",
            "jdbc:mysql://(host=h, password='x')/crm{}",
            "jdbc:mysql://address=(host=h)(password=x)/crm{}",
            "h:6380,password=x=,ssl=True,defaultDatabase={}",
            "password=x,ssl=True,defaultDatabase={}",
            "user=u&password=x&db={}",
            "user=u&password=x&db={} ",
            "password=x,ssl=True,defaultDatabase={}\r\n",
            "x:h;password=a?db={}",
        )
    ),
    # An `@` behind the host, whose port is none of a password.
    *(
        ({"url": text.format("a")}, {"url": text.format("b")})
        for text in (
            "https://{}:8080/x?mail=me@example.com",
            "https://{}/x:y?mail=me@example.com",
            "https://{}:8080?mail=me@example.com",
            "postgresql://{}:5432/crm?mail=me@example.com",
            "https://{}?mail=x:me@example.com",
            "https://{}:/x@y",
            "https://[::{}]:8080/x@y",
            "mongodb://{}:27017,h2:27017/crm?x=y@z",
            "s3://arn:aws:s3:region:1:accesspoint/{}/x@y",
            "postgresql://u:p?pw=x@{}/crm",
            "postgresql://u:p#x@{}/crm",
            "https://{}:${{PORT}}/x@y",
            "postgresql://{}:${{PORT}}/x@y",
            "mysql://{}:{{port}}/x@y",
            "kafka://{}:topic/x@y",
            "bigquery://{}:d/t@1",
            "kafka://{}:topic?client=x@y",
            "imap://mail:{}?to=a@b.c",
            "pubsub://{}:topic#x@1",
            "mysql://{}:%PORT%/crm?user=a@corp",
            "mysql://{}:__PORT__/crm?user=a@corp",
            "mysql://{}:<port>/crm?user=a@corp",
            "//{}:share/x@y",
            "ssh://github.com:{}/repo@main",
        )
    ),
    # They may be logins, or a sheet, a company, a column, an inbox.
    *(
        ({"url": f"https://h/x?{name}=a1b2c3d4e5f6a7b8c9"}, {"url": f"https://h/x?{name}=a1b2c3d4e5f6a7b8c0"})
        for name in ("key", "code", "sort_key", "partition-key", "email", "login", "author", "oauth_client")
    ),
    ({"env": {"PGHOST": "db1"}}, {"env": {"PGHOST": "db2"}}),
    (
        {"connection_string": "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=eA=="},
        {"connection_string": "DefaultEndpointsProtocol=https;AccountName=b;AccountKey=eA=="},
    ),
    (
        {"service_account": '{"project_id": "a", "private_key": "x"}'},
        {"service_account": '{"project_id": "b", "private_key": "x"}'},
    ),
    ({"credentials_path": "/a"}, {"credentials_path": "/b"}),
    *(
        ({name: '{"project_id": "a", "private_key": "x"}'}, {name: '{"project_id": "b", "private_key": "x"}'})
        for name in ("credentials_json", "keyfile_json", "keyFileJson", "credentials")
    ),
    ({"credentials": {"project_id": "a"}}, {"credentials": {"project_id": "b"}}),
    *(
        ({"credentials": {name: "a", "pem": "x"}}, {"credentials": {name: "b", "pem": "x"}})
        for name in ("account", "accountName", "host", "database", "bucket_name", "url", "tenant_id")
    ),
    *(
        ({"credentials": {name: "a", "token": "x"}}, {"credentials": {name: "b", "token": "x"}})
        for name in ("subdomain", "server_id", "keyspace", "key_prefix", "username", "author", "planet", "key", "type")
    ),
    # Words of a login within the name of a place, or above one.
    *(
        ({name: "a"}, {name: "b"})
        for name in (
            "auth_url",
            "token_url",
            "sas_endpoint",
            "auth_server",
            "secret_domain",
            "project_key",
            "space_key",
        )
    ),
    ({"sas_url": "https://a.example/c?sig=x"}, {"sas_url": "https://b.example/c?sig=x"}),
    *(
        ({name: {"host": "a", "token": "x"}}, {name: {"host": "b", "token": "x"}})
        for name in ("key_file", "private_key", "token", "client_secret", "auth")
    ),
    ({"tokens": [{"access_token": {"planet": "a"}}]}, {"tokens": [{"access_token": {"planet": "b"}}]}),
    *(
        ({name: '{"host": "a", "sas": "x"}'}, {name: '{"host": "b", "sas": "x"}'})
        for name in ("credentials_json", "secret", "settings")
    ),
    ({"token": '[{"host": "a"}]'}, {"token": '[{"host": "b"}]'}),
    ({"postgres_dsn": "host=a password=x"}, {"postgres_dsn": "host=b password=x"}),
    # The names of mappings count although they hold only a login, or nothing.
    ({"tenants": {"a": {"token": "x"}}}, {"tenants": {"b": {"token": "x"}}}),
    ({"schemas": {"a": {}}}, {"schemas": {"b": {}}}),
    (
        {"credentials_json": '{"nodes": ["a", "b"], "token": "x"}'},
        {"credentials_json": '{"nodes": ["a", "c"], "token": "x"}'},
    ),
    ({"credentials": [{"planet": "a", "token": "x"}]}, {"credentials": [{"planet": "b", "token": "x"}]}),
    ({"credentials": {"auth": {"planet": "a"}}}, {"credentials": {"auth": {"planet": "b"}}}),
    (
        {"keyfile_json": {"type": "service_account", "private_key": "x", "planet": "a"}},
        {"keyfile_json": {"type": "service_account", "private_key": "x", "planet": "b"}},
    ),
    ({"type": "service_account", "client_email": "a"}, {"type": "service_account", "client_email": "b"}),
]
OF_ACCOUNT = {
    "type": "service_account",
    "project_id": "a",
    "private_key_id": "1",
    "private_key": "x",
    "client_email": "crm@a.iam.gserviceaccount.com",
    "client_id": "1",
    "auth_uri": "https://accounts.google.com/o/oauth2/auth",
    "token_uri": "https://oauth2.googleapis.com/token",
    "auth_provider_x509_cert_url": "https://www.googleapis.com/oauth2/v1/certs",
    "client_x509_cert_url": "https://www.googleapis.com/robot/v1/metadata/x509/crm",
}
OTHER_PLACES += [
    ({"url": f"{text}=a"}, {"url": f"{text}=b"})
    for text in ("snowflake://acc/?db", "https://h/x?tenant", "https://h/open?id", "md:crm?saas_mode", "what?")
]
SAME_PLACE: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {"url": "https://b.example/x?X-Date=1&X-Amz-Signature=a"},
        {"url": "https://b.example/x?X-Date=2&X-Amz-Signature=b"},
    ),
    ({"path": "md:crm?motherduck_token=a"}, {"path": "md:crm?motherduck_token=b"}),
    ({"url": "postgresql:///crm?password=x&host=db"}, {"url": "postgresql:///crm?host=db&password=y"}),
    (
        {"url": "mssql+pyodbc://u:p@/?odbc_connect=SERVER%3Da%3BPWD%3D{x;}%3BDATABASE%3Dd"},
        {"url": "mssql+pyodbc://v:q@/?odbc_connect=SERVER%3Da%3BPWD%3Dy%3BDATABASE%3Dd"},
    ),
    ({"dsn": "host=db password='x \\' y'"}, {"dsn": "host=db password=z"}),
    *(
        ({"dsn": text.format(before)}, {"dsn": text.format(now)})
        for text in (
            "host=db1 dbname=crm password={}",
            "password={} host=db1 options=a?b=1",
            "host=db1 password='{}' dbname=crm",
            "DRIVER=x;SERVER=a;PWD={};DATABASE=d",
            "DRIVER=x;SERVER=a;PWD={{{}}};DATABASE=d",
            "jdbc:sqlserver://h:1433;user=x;password={};databaseName=d",
        )
        for before, now in (("Kq?7x", "Kq?8y"), ("Kq7x", "Kq?7x"), ("?a,b&c)=", "x"))
    ),
    # Here something follows that ends them, so that they may have more.
    *(
        ({"dsn": text.format("?a=1&b=2,c=3")}, {"dsn": text.format("x")})
        for text in ("password={} host=db1 options=a?b=1", "DRIVER=x;PWD={};DATABASE=d", "host=db1 password='{}'")
    ),
    *(
        ({"url": f"postgresql+psycopg://u:{before}@{place}"}, {"url": f"postgresql+psycopg://v:p@{place}"})
        for before in ("p?x", "p#x", "p/x", "p[x", "1p?a=b&c=d")
        for place in ("h:5432/crm", "/crm?host=h", "[::1]/crm")
    ),
    (
        {"sas": "SharedAccessSignature=?sv=1&sig=x;BlobEndpoint=h"},
        {"sas": "SharedAccessSignature=?sv=2&sig=y;BlobEndpoint=h"},
    ),
    ({"odbc": "PWD={a}}b;c?d};DATABASE=d"}, {"odbc": "PWD={x}}y?z;};DATABASE=d"}),
    *(
        ({"url": f"{place}?{name}=a"}, {"url": f"{place}?{name}=b"})
        for place in ("https://h/x", "md:crm")
        for name in ("auth", "x-auth", "hmac", "pw", "subscription-key", "x-functions-key", "mytoken", "user")
    ),
    ({"dsn": "postgresql://a:x@db/crm"}, {"dsn": "postgresql://b:y@db/crm"}),
    ({"dsn": " postgresql://a:x?1@db/crm"}, {"dsn": " postgresql://b:y?2@db/crm"}),
    ({"env": {"PGPASSWORD": "x", "PGHOST": "a"}}, {"env": {"PGPASSWORD": "y", "PGHOST": "a"}}),
    (
        {"env": {"AWS_ACCESS_KEY_ID": "x", "TRACEPARENT": "1", "PATH": "/a"}},
        {"env": {"AWS_ACCESS_KEY_ID": "y", "TRACEPARENT": "2", "PATH": "/b"}},
    ),
    *(
        ({"host": "db", name: "x"}, {"host": "db", name: "y"})
        for name in (
            "aws_access_key_id",
            "awsAccessKeyId",
            "db_pass",
            "credentials",
            "credentials_json",
            "keyfile_json",
            "private_key_pem",
            "pat",
            "pass",
            "sftp_pass",
            "smtp_pass",
        )
    ),
    (
        {"service_account": '{"project_id": "a", "private_key_id": "1", "private_key": "x"}'},
        {"service_account": '{"private_key": "y",\n "private_key_id": "2", "project_id": "a"}'},
    ),
    *(
        (
            {name: '{"project_id": "a", "private_key_id": "1", "private_key": "x"}'},
            {name: '{"project_id": "a", "private_key_id": "2", "private_key": "y"}'},
        )
        for name in ("credentials_json", "keyfile_json", "credentials")
    ),
    *(
        (
            {name: "x", "credentials": {"host": "a", "auth": {name: "x"}}},
            {name: "y", "credentials": {"host": "a", "auth": {name: "y"}}},
        )
        for name in (
            "expiry",
            "expiration",
            "expires_in",
            "token_expires_at",
            "pem",
            "sas",
            "signature",
            "assertion",
            "account_key",
            "access_token",
            "refreshToken",
            "session_token",
            "client_id",
            "client_secret",
        )
    ),
    ({"api_keys": {"api_key": ["x", "z"]}}, {"api_keys": {"api_key": ["y", "z"]}}),
    ({"credentials": {"host": "a", "token": {"token": "x"}}}, {"credentials": {"host": "a", "token": {"token": "y"}}}),
    ({"credentials": ["x"]}, {"credentials": ["y"]}),
    (
        {
            "credentials": {
                "aws_access_key_id": "x",
                "aws_secret_access_key": "x",
                "aws_session_token": "x",
                "region": "a",
            }
        },
        {"credentials": {"aws_access_key_id": "y", "aws_secret_access_key": "y", "region": "a"}},
    ),
    # A new key of another account, as Google writes it, under any name.
    *(
        (
            {name: OF_ACCOUNT},
            {
                name: {
                    key: value if key in ("type", "project_id") else f"{value}2" for key, value in OF_ACCOUNT.items()
                }
                | {"universe_domain": "googleapis.com"}
            },
        )
        for name in ("credentials", "service_account_info")
    ),
    (
        {"login": json.dumps({"type": "service_account", "clientEmail": "a", "privateKey": "x", "projectId": "p"})},
        {"login": json.dumps({"type": "service_account", "clientEmail": "b", "privateKey": "y", "projectId": "p"})},
    ),
    *(
        (
            {"credentials": {"type": "external_account", name: "a", "project_id": "p"}},
            {"credentials": {"type": "external_account", name: "b", "project_id": "p"}},
        )
        for name in ("quota_project_id", "token_url", "credential_source", "audience")
    ),
    (
        {"credentials": {"type": "external_account", "credential_source": {"url": "https://a.example"}}},
        {"credentials": {"type": "external_account", "credential_source": {"url": "https://b.example"}}},
    ),
    *(
        ({"connection_string": f"{place}={before}"}, {"connection_string": f"{place}={now}"})
        for place, before, now in (
            ("DefaultEndpointsProtocol=https;AccountName=a;AccountKey", "x/+==", "y=="),
            ("BlobEndpoint=https://a.blob.core.windows.net/;SharedAccessSignature", "sv=1&sig=x", "sv=2&sig=y"),
            ("Endpoint=sb://a.servicebus.windows.net/;SharedAccessKeyName=b;SharedAccessKey", "x=", "y="),
        )
    ),
    ({"url": "https://a.example.com/c?sv=1&se=2&sig=x"}, {"url": "https://a.example.com/c?sv=1&se=3&sig=y"}),
]


@pytest.mark.guarantee("Singer")
def test_the_identity_follows_the_place_and_not_the_secret_or_the_program_s_folder() -> None:
    def identity(command: str = "/a/target-x", env: dict[str, str] | None = None, **config: Any) -> str:
        written = {"command": command, "config": config, "env": env or {}}
        return SingerSink(SingerSettings.model_validate(written)).identity

    first = identity(host="db", password="one", url="postgresql://me:one@db/crm")
    assert first == identity("/b/target-x", host="db", password="two", url="postgresql://you:two@db/crm")
    assert first != identity(host="other", password="one", url="postgresql://me:one@db/crm")
    assert first != identity(host="db", password="one", url="postgresql://me:one@db/other")
    for before, now in OTHER_PLACES:
        assert identity(**before) != identity(**now), f"another place: {before}"
    for before, now in SAME_PLACE:
        assert identity(**before) == identity(**now), f"another secret: {before}"
    named = SingerSettings.model_validate({"command": "target-x", "identity": "warehouse", "config": {"host": "a"}})
    assert SingerSink(named).identity == "singer:warehouse"


LOGINS_OF_URL = ("auth", "pw", "hmac", "sas", "subscription-key", "functions-key", "mytoken", "user")
# A word that is added to those of logins may be one of these.
PLACES_OF_URL = (
    "key",
    "code",
    "email",
    "author",
    "login",
    "session",
    "client",
    "ticket",
    "hash",
    "pin",
    "access",
    "id",
)
PLACES: list[tuple[dict[str, Any], dict[str, str], str]] = [
    ({"host": "db", "port": 5432, "user": "crm", "password": "x", "database": "crm"}, {}, "a7d5c404889df81e"),
    ({"sqlalchemy_url": "postgresql+psycopg://crm:x@db:5432/crm?sslmode=require"}, {}, "d8b181ea619c7b98"),
    ({"sqlalchemy_url": "postgresql://crm:p?x@/crm?host=db"}, {}, "f5a9b613187913d9"),
    (
        {"account": "a-b", "user": "crm", "private_key": "x", "database": "crm", "warehouse": "w", "role": "r"},
        {},
        "daf1eef65f473d5a",
    ),
    (
        {"project": "p", "dataset": "d", "credentials_json": json.dumps(OF_ACCOUNT), "batch_size": 500},
        {},
        "9a56fcf2c62f099e",
    ),
    ({"path": "md:crm?motherduck_token=x"}, {}, "7dde425a84a28bed"),
    (
        {"s3": {"bucket": "b", "aws_access_key_id": "x", "aws_secret_access_key": "x"}, "prefix": "crm/"},
        {},
        "ce298a601ca025cd",
    ),
    ({"odbc": "DRIVER={ODBC Driver 18};SERVER=db,1433;DATABASE=crm;UID=crm;PWD={x}}y}"}, {}, "5e535113e49d8aba"),
    ({"url": "jdbc:mysql://(host=db,password=x)/crm?useSSL=true&password=x"}, {}, "f7a4799f095e09d3"),
    (
        {"connection_string": "BlobEndpoint=https://a/;SharedAccessSignature=?sv=1&sig=x", "container": "c"},
        {},
        "b1cd3af9990dbddd",
    ),
    ({"url": "https://a.example/c?region=r&X-Amz-Date=1&X-Amz-Signature=x"}, {}, "f5b6ba05216038ce"),
    ({"url": f"https://a.example/x?{'=x&'.join(LOGINS_OF_URL + PLACES_OF_URL)}=x"}, {}, "db7bb132c8e8d559"),
    ({"schema": "public"}, {"PGHOST": "db", "PGPASSWORD": "x", "PGAPPNAME": "crm"}, "d7f10327b354dbce"),
]


@pytest.mark.parametrize(("config", "env", "digest"), PLACES)
def test_the_identity_of_typical_targets_stays_as_earlier_pushes_have_it(
    config: dict[str, Any], env: dict[str, str], digest: str
) -> None:
    # Another digest sends all rows again: only with a line in CHANGELOG.md, and `adopt` named there.
    settings = SingerSettings.model_validate({"command": "target-x --verbose", "config": config, "env": env})
    assert settings.place == f"singer:target-x:{digest}"
