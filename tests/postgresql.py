"""A real PostgreSQL server, from Debian's packages, for the tests that claim to work with one."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg

_BIN = sorted(Path("/usr/lib/postgresql").glob("*/bin"))


class PostgresqlServer:
    """A context manager. It refuses to run as root, so root runs it as the user that the package made."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="vitrine-pg-", dir="/tmp"))
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self._databases = 0
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> PostgresqlServer:
        assert _BIN, "PostgreSQL is not installed: make test-deps"
        if os.geteuid() == 0:
            shutil.chown(self.folder, "postgres")
        self._run("initdb", "-D", str(self.folder / "data"), "-A", "trust", "-U", "vitrine", "--locale=C.UTF-8")
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> None:
        """Start, and wait until it answers."""
        settings = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "fsync": "off"}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        command = [*_prefix(), str(_BIN[-1] / "postgres"), "-D", str(self.folder / "data"), "-p", str(self.port)]
        self._process = subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + 30
        while True:
            try:
                return self._admin().close()
            except psycopg.OperationalError:
                assert time.monotonic() < end and self._process.poll() is None, "PostgreSQL did not start"
                time.sleep(0.05)

    def stop(self) -> None:
        """Stop at once, as for a crash."""
        if self._process is not None:
            subprocess.run([*_prefix(), "kill", "-QUIT", str(self._process.pid)], check=False)
            self._process.wait(20)
            self._process = None

    def new_database(self) -> str:
        """The URL of an empty database of its own."""
        self._databases += 1
        name = f"test{self._databases}"
        with self._admin() as connection:
            connection.execute(f"CREATE DATABASE {name}")  # type: ignore[call-overload]
        return f"postgresql://vitrine@127.0.0.1:{self.port}/{name}"

    def drop_connections(self) -> None:
        """As a restart of the server, or a firewall, would."""
        with self._admin() as connection:
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname LIKE 'test%'")

    def _admin(self) -> psycopg.Connection:
        return psycopg.connect(
            host="127.0.0.1", port=self.port, user="vitrine", dbname="postgres", autocommit=True, connect_timeout=5
        )

    def _run(self, program: str, *arguments: str) -> None:
        command = [*_prefix(), str(_BIN[-1] / program), *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=self.folder)


def _prefix() -> list[str]:
    if os.geteuid() != 0:
        return []
    user = pwd.getpwnam("postgres")
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
