"""The table of docs/api.md, of the declared endpoints. `python -m tests.support.api_page` writes it."""

import re
from pathlib import Path

from scheduler.live.http.web_application import api_routes
from walras.resources.endpoint import AGENT, API, CONTENT, Endpoint

PAGE = Path(__file__).resolve().parents[2] / "docs" / "api.md"
_HEAD = "| endpoint | who | what |\n|---|---|---|\n"


def row(endpoint: Endpoint) -> str:
    """One line of the table: method, path below the base and query; who may; what it does."""
    query = "&".join(f"{name}=" for name in endpoint.query)
    place = endpoint.plain_path.removeprefix(API) + (f"?{query}" if query else "")
    return f"| `{endpoint.method} {place}` | {endpoint.who} | {endpoint.summary} |\n"


def written(page: str) -> str:
    """The page with the table that the declarations make: what users call."""
    paths = {endpoint.path for endpoint in api_routes()}
    rows = [
        row(endpoint)
        for endpoint in api_routes()
        if API + endpoint.path not in paths and not endpoint.path.startswith((AGENT, CONTENT))
    ]
    return re.sub(re.escape(_HEAD) + r"(?:\|.*\n)*", lambda _: _HEAD + "".join(rows), page)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
