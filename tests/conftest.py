"""What tests of several folders share."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def postgresql():
    """A real PostgreSQL server; ask it for a database of your own."""
    from tests.postgresql import PostgresqlServer

    with PostgresqlServer() as server:
        yield server
