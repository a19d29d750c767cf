"""Durable state: tables, journal, migrations, replay, and the files in the server's data folder."""
