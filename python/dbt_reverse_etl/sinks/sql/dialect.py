"""What a database does differently."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import pyarrow as pa

from dbt_reverse_etl.base.outcome import Outcome
from dbt_reverse_etl.sinks.base import Limits, SinkTask
from dbt_reverse_etl.sinks.refusals import Converted, Refusal
from dbt_reverse_etl.sinks.sql.reading import rows_in_parts
from dbt_reverse_etl.sinks.sql.rights import INSERT, SELECT, Lack, Need
from dbt_reverse_etl.sinks.sql.table import Name, Table, Wrong, quoted, soft_delete
from dbt_reverse_etl.sinks.sql.values import Kind

Fault = tuple[Any, ...]  # why a table refuses a row, as the error said it
CORRECT_LOGIN = "correct user and password in profiles.yml"
CORRECT_DATABASE = "create the database, or correct database in profiles.yml"
GRANT_DATABASE = "correct database in profiles.yml, or grant the user the right to connect"
CORRECT_SERVER = "start the server, or correct host and port in profiles.yml"
OpenMode = Literal["ro", "rw", "rwc"]  # of a file: read, write, and make it if it is not there


class RolledBack(Exception):
    """The table refused the batch as one, and nothing of it is applied."""

    def __init__(self, reason: str, outcome: Outcome = Outcome.REJECTED) -> None:
        super().__init__(reason)
        self.outcome = outcome


class Dialect(ABC):
    """One database, as its settings name it. Holds no connection and no state.

    Class attributes:
        name: what people call it.
        page: of the documentation.
        failure_type: base of the driver's errors.
        limits: of a batch.
        is_file: the database is a file of this machine.
        transactional_ddl: DDL can be rolled back.
        quote: begins and ends a quoted identifier.
        mark: a bound value in a statement.
        object_form, name_form, key_form: what an object, field names and the index of the key must be like.
        reserved: objects must not begin so.
        moment_types: of a column that `soft_delete` may name.
        object_suffix: ends the DDL of an object.
        id_type, table_suffix: of our own tables.
        state_setting: that names where they are.
        raise_fence: writes a fence unless a newer one is there.
        hold_fence: a statement that locks the fence where a query cannot.
        lock_fence, lock_record: end of a query that locks the row against others.
        insert_only: rights on the object that this mode needs.
        hides_commits: a query does not see a record whose COMMIT is still on its way, nor wait for it.
        kinds: what is done with values, by Arrow type: the first one that has it.
    """

    name: ClassVar[str]
    page: ClassVar[str]
    failure_type: ClassVar[type[Exception]]
    limits: ClassVar[Limits]
    is_file: ClassVar[bool] = False
    transactional_ddl: ClassVar[bool] = True
    quote: ClassVar[str] = '"'
    mark: ClassVar[str] = "?"
    object_form: ClassVar[str]
    name_form: ClassVar[str]
    key_form: ClassVar[str] = ""
    reserved: ClassVar[tuple[str, ...]] = ()
    moment_types: ClassVar[frozenset[str]] = frozenset()
    object_suffix: ClassVar[str] = ""
    id_type: ClassVar[str] = "text NOT NULL"
    table_suffix: ClassVar[str] = ""
    state_setting: ClassVar[str] = "state_schema"
    raise_fence: ClassVar[str] = (
        "INSERT INTO {fences} AS f VALUES (?, ?) ON CONFLICT (sync_id) DO UPDATE SET fence = excluded.fence "
        "WHERE f.fence {lt} excluded.fence"
    )
    hold_fence: ClassVar[str] = ""
    lock_fence: ClassVar[str] = ""
    lock_record: ClassVar[str] = ""
    insert_only: ClassVar[tuple[str, ...]] = (SELECT, INSERT)
    hides_commits: ClassVar[bool] = False
    kinds: ClassVar[Sequence[Kind]]

    def __init__(self, settings: Any) -> None:
        self.settings = settings

    # The place and its sessions

    @property
    def identity(self) -> str:
        """Names the database without its credentials."""
        return str(self.settings.identity)

    @property
    def holder(self) -> str:
        """That in which the name of an object means one table."""
        return self.identity

    @property
    def default_schema(self) -> str | None:
        """Where an object is that names no schema; None: where the connection looks for it."""
        return None

    @property
    def state_schema(self) -> str | None:
        """Where our two tables stand; None: beside the object."""
        return getattr(self.settings, self.state_setting, None)

    @property
    def adds_columns(self) -> bool:
        """Whether missing columns are added."""
        return getattr(self.settings, "on_new_column", "fail") == "add"

    def place_problem(self) -> Wrong | None:
        """Why a file cannot be there."""
        return None

    def absent_file(self) -> str | None:
        """The file, if it is not there."""
        return None

    def place(self) -> object:
        """Tells the file from another one that took its place."""
        return None

    def unfit_server(self, connection: Any) -> Wrong | None:
        """Why no push can ever write to a server."""
        return None

    def server_problem(self, connection: Any) -> Wrong | None:
        """Why a server takes no writes as it is, such as a replica."""
        return None

    def lacks(self, connection: Any, needs: Sequence[Need]) -> list[Lack]:
        """The rights that the login lacks. Writes nothing."""
        return []

    @abstractmethod
    def connect(self, mode: OpenMode) -> Any:
        """A new connection in autocommit mode, which depends on no default of the server or the environment."""

    def is_open(self, connection: Any) -> bool:
        """Whether a connection may still be used."""
        return True

    @abstractmethod
    def run(self, connection: Any, statement: str, values: Sequence[Any] = ()) -> Any:
        """One statement; a cursor with what it gives."""

    @abstractmethod
    def begin(self, connection: Any, *, read_only: bool = False) -> None:
        """Start a transaction."""

    # Errors

    @abstractmethod
    def failure(self, error: Any) -> tuple[Outcome, str]:
        """What an error means for a transaction that was surely not committed. Never the server's text: it quotes values."""

    def next_step(self, error: Any) -> str | None:
        """What a user does about an error; None: the page says it."""
        return None

    @abstractmethod
    def fault(self, connection: Any, error: Any) -> Fault | None:
        """How an error speaks of a row's values; None: no row is at fault. Raises RolledBack where it ended the transaction."""

    @abstractmethod
    def is_rolled_back(self, connection: Any, error: Any) -> bool:
        """Whether a COMMIT that failed so was surely not carried out. Raises RolledBack where the rows are at fault."""

    # Our record

    def serialize(self, connection: Any, word: str) -> None:  # noqa: B027  (most databases need none)
        """Let others that say the same word wait until the transaction ends."""

    def unsafe_record(self, connection: Any, name: Name) -> Wrong | None:
        """Why a table of ours cannot be trusted."""
        return None

    # The object

    def object_name(self, text: str) -> Name | None:
        """`table`, `schema.table`, with quotes around a part that has a dot; None for anything else."""
        quote = self.quote
        part = f"(?:{quote}((?:[^{quote}]|{quote}{quote})+){quote}|([^{quote}.]+))"
        match = re.fullmatch(rf"(?:{part}\.)?{part}", text, re.DOTALL)
        if match is None:
            return None
        of, name = ((match[at] or "").replace(quote * 2, quote) or match[at + 1] for at in (1, 3))
        schema = of or self.default_schema
        is_one = self.is_name(name) and (schema is None or self.is_name(schema))
        return self.name_of(schema, name) if is_one else None

    def name_of(self, schema: str | None, name: str) -> Name:
        """A table in a schema; None: that of the connection."""
        return Name(schema, name, self.quote)

    def one_table(self, name: Name) -> str:
        """The same text for every name of one table."""
        return str(name)

    def quoted(self, name: str) -> str:
        """An identifier as SQL."""
        return quoted(name, self.quote)

    def indexed(self, name: str) -> str:
        """A column of an index that makes a key one row."""
        return self.quoted(name)

    def operator(self, sign: str) -> str:
        """A comparison that nobody else's can take the place of."""
        return sign

    def fold(self, name: str) -> str:
        """Two columns are one if their folded names are."""
        return name.lower()

    @abstractmethod
    def is_name(self, name: str) -> bool:
        """Whether the database takes a name as it is."""

    @abstractmethod
    def exists(self, connection: Any, name: Name) -> bool:
        """Whether a table or view of that name is there."""

    def name_in_other_case(self, connection: Any, name: Name) -> str | None:
        """The name of a table beside it that differs in case alone."""
        lower = name.name.lower()
        return lower if lower != name.name and self.exists(connection, replace(name, name=lower)) else None

    @abstractmethod
    def read_table(self, connection: Any, name: Name) -> Table | None:
        """The object as it is now."""

    def read_rows(self, connection: Any, name: Name, table: Table, task: SinkTask) -> Iterator[pa.Table]:
        """The fields of a task in every row, as `reading.rows_of` gives them; in the transaction that is open."""
        return rows_in_parts(connection.execute(self.every_row(name, table, task)), task)

    def every_row(self, name: Name, table: Table, task: SinkTask) -> str:
        """Queries the fields as texts, but for marked rows."""
        texts = (self.text_of(field, table.columns[self.fold(field.name)]) for field in task.schema)
        soft = soft_delete(task)
        kept = f" WHERE {self.quoted(soft)} IS NULL" if soft else ""
        return f"SELECT {', '.join(texts)} FROM {name.sql}{kept}"

    @abstractmethod
    def text_of(self, field: pa.Field, column: Any) -> str:
        """The values of a column as texts, where the database writes them."""

    # Types and values

    def column_type(self, plain: pa.DataType, *, in_key: bool = False) -> str:
        """The type of a column that holds every value of an Arrow type."""
        return self.kind(plain).column.format(plain)

    def column_problem(self, column: Any, field: pa.Field, task: SinkTask, name: Name) -> Wrong | None:
        """What else a column must not be."""
        return None

    def is_supported(self, plain: pa.DataType) -> bool:
        """Whether the values of a type have an exact form."""
        return any(kind.has(plain) for kind in self.kinds)

    def converted(self, array: Any, column: Any) -> Converted:
        """Values of a type that is not nested, as the database takes them."""
        return self.kind(array.type).convert(array)

    def kind(self, plain: pa.DataType) -> Kind:
        """What is done with the values of a type."""
        return next(kind for kind in self.kinds if kind.has(plain))

    def unfit(self, array: Any, written: Any, column: Any) -> list[Refusal]:
        """Values, before and after their conversion, that a column would cut or change instead of refusing them."""
        return []


class FileDialect(Dialect):
    """A database in a file of this machine."""

    is_file = True

    @property
    def path(self) -> Path:
        """The file, links followed."""
        return Path(self.settings.path).resolve()

    @property
    def identity(self) -> str:
        """The absolute path."""
        return str(self.path)

    def is_name(self, name: str) -> bool:
        return bool(name) and "\0" not in name

    def absent_file(self) -> str | None:
        """The file, if it is not there: to connect would make it."""
        return None if self.path.exists() else str(self.path)

    def place(self) -> object:
        """Device and inode: writes to an unlinked file would vanish without an error."""
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def place_problem(self) -> Wrong | None:
        folder, path = self.path.parent, self.path
        if not folder.is_dir():
            return f"no folder {folder}", "an existing folder", f"make it: mkdir -p '{folder}'"
        if not os.access(folder, os.W_OK):
            return "a folder that cannot be written", "write permission", "change its permissions"
        if path.exists() and not (path.is_file() and os.access(path, os.R_OK | os.W_OK)):
            return "no regular file that can be read and written", "one", "change path or permissions"
        return None


def first_of(reasons: Mapping[str, str], text: str) -> str | None:
    """The reason of the first regular expression that is found in a text."""
    return next((reason for pattern, reason in reasons.items() if re.search(pattern, text)), None)
