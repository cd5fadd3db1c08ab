"""The files of cases: on a local disk, in the database, or at any URL that fsspec knows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from trtdx.errors import CaseError, InputError
from trtdx.optional import import_optional
from trtdx.redact import redact_secrets

if TYPE_CHECKING:
    from trtdx.cases.database.database import Database
    from trtdx.cases.location import StoreLocation
    from trtdx.host import Host

DATABASE_SCHEME = "database:"


class BodyStore(Protocol):
    """Where the files of cases are kept; a file is whole or not there."""

    def write(self, name: str, data: bytes) -> str:
        """Keep a file and return where it lies."""

    def read(self, place: str) -> bytes:
        """Return a file that `write` kept."""


def open_bodies(host: Host, location: StoreLocation, database: Database) -> BodyStore:
    """Return the place that the location names for files."""
    if not location.files:
        return DatabaseBodies(database)
    place = location.files.removeprefix("file://")
    return UrlBodies(place) if "://" in place else FolderBodies(host, place)


class FolderBodies:
    """Files in a folder."""

    def __init__(self, host: Host, folder: str) -> None:
        self._host, self._folder = host, Path(folder)

    def write(self, name: str, data: bytes) -> str:
        path = str(self._folder / name)
        try:
            self._host.write(path, data)
        except InputError as err:
            raise CaseError(f"the file of the case cannot be kept: {err.message}", fix="name another store with TRTDX_STORE") from err  # fmt: skip
        return name

    def read(self, place: str) -> bytes:
        try:
            with self._host.open(str(self._folder / place)) as stream:
                return stream.read()
        except InputError as err:
            raise CaseError(f"the file of the case is not there: {err.message}") from err


class DatabaseBodies:
    """Files in the database itself: one transaction with the case, one thing to back up."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def write(self, name: str, data: bytes) -> str:
        self._database.execute(
            "INSERT INTO case_bodies (id, data) VALUES (?, ?) ON CONFLICT (id) DO NOTHING", (name, data)
        )
        return DATABASE_SCHEME + name

    def read(self, place: str) -> bytes:
        rows = self._database.execute(
            "SELECT data FROM case_bodies WHERE id = ?", (place.removeprefix(DATABASE_SCHEME),)
        )
        if not rows:
            raise CaseError(f"the file {place} of the case is not in the store")
        return bytes(rows[0][0])


class UrlBodies:
    """Files at a URL: s3://bucket/folder, memory://, and what else fsspec knows."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        fsspec = import_optional("fsspec", extra="remote", purpose=f"keep case files at {redact_secrets(url)}")
        self._files: Any = self._call(lambda: fsspec.core.url_to_fs(self._url)[0])

    def write(self, name: str, data: bytes) -> str:
        self._call(lambda: self._files.pipe_file(self._path(name), data))
        return name

    def read(self, place: str) -> bytes:
        return bytes(self._call(lambda: self._files.cat_file(self._path(place))))

    def _path(self, name: str) -> str:
        return str(self._files._strip_protocol(f"{self._url}/{name}"))

    def _call(self, work: Any) -> Any:
        """Return what fsspec answers; which errors its back ends raise is theirs to choose."""
        try:
            return work()
        except Exception as err:
            where = f"{urlsplit(self._url).scheme}://{urlsplit(self._url).hostname or ''}"
            words = redact_secrets(str(err) or type(err).__name__).splitlines()[0]
            raise CaseError(
                f"case files at {where} cannot be used: {words}",
                fix="see TRTDX_CASE_FILES, and pip install 'trtdx[remote]'",
            ) from err
