"""Reports that people publish to the server: pages of simulations, comparisons and sweeps, for others to open.

A report is one HTML file that needs no other, as `walras simulate run`, `compare` and `sweep` write it. Those who see
its project read it; a report of project `*` is for all who may sign in. It is data of a stranger: a browser shows it in
a frame that neither knows the user's session nor reaches the server.
"""

import html
import re

from pydantic import TypeAdapter

from walras.api import Body
from walras.transport import ApiCall, Transport

_BASE = "/api/v1/reports"
#: The largest page, in bytes, the longest title, in characters, and the most reports of a project and in all.
REPORT_BYTES, LONGEST_TITLE = 8 * 1024 * 1024, 200
MOST_REPORTS_OF_PROJECT, MOST_REPORTS = 200, 2000
_TITLE = re.compile(r"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)
#: A title stands near the beginning of a page.
_TITLE_WITHIN = 64 * 1024
#: What an HTML page begins with, after a byte order mark: the signatures of the WHATWG's MIME Sniffing standard, and
#: other elements that pages made by hand begin with.
_HTML = re.compile(
    rb"(\xef\xbb\xbf)?[\t\n\f\r ]*<"
    rb"(!--|(!doctype html|html|head|meta|link|script|style|title|iframe|h[1-6]|div|main|section|article|pre|font|table"
    rb"|a|b|body|br|p)[ >])",
    re.IGNORECASE,
)


class PublishedReport(Body):
    """A report that was published, without its page."""

    id: int
    title: str
    #: Who reads it: those who see this project; `*`: all who may sign in.
    project: str
    user: str
    published_at: str
    #: SHA-256 of the page.
    sha256: str
    size_bytes: int


_reports: TypeAdapter[list[PublishedReport]] = TypeAdapter(list[PublishedReport])


class PublishedReportCalls:
    """The client's calls about published reports."""

    _transport: Transport

    async def publish_report(self, page: bytes, title: str, *, project: str | None = None) -> PublishedReport:
        """Publish an HTML page, for the readers of a project (None: your first one; `*`: everybody, by operators).

        Returns the report that is there already where the same page has that title there. Raises UserError for a page
        that is too large or no text, Forbidden for somebody else's project, Conflict where there are too many.
        """
        query = {"title": title} | ({} if project is None else {"project": project})
        call = ApiCall("POST", _BASE, query=query, data=page, headers={"Content-Type": "text/html"})
        return PublishedReport.model_validate(await self._transport.json(call))

    async def published_reports(self) -> list[PublishedReport]:
        """Returns the reports that the caller may read, newest first."""
        return _reports.validate_python(await self._transport.json(ApiCall("GET", _BASE)))

    async def published_report(self, report_id: int) -> PublishedReport:
        """Returns one report without its page."""
        return PublishedReport.model_validate(await self._transport.json(ApiCall("GET", f"{_BASE}/{report_id:d}")))

    async def report_page(self, report_id: int) -> bytes:
        """Returns the HTML of a report, as it was published. Never run its scripts where they could reach anything."""
        return await self._transport.bytes(ApiCall("GET", f"{_BASE}/{report_id:d}/page"))

    async def remove_report(self, report_id: int) -> PublishedReport:
        """Remove a report (its publisher, operators), and return what it was."""
        call = ApiCall("DELETE", f"{_BASE}/{report_id:d}", repeatable=False)
        return PublishedReport.model_validate(await self._transport.json(call))


def is_html(page: bytes) -> bool:
    """Returns whether the page begins as HTML does."""
    return _HTML.match(page) is not None


def title_of_page(page: bytes) -> str:
    """Returns the title that an HTML page gives itself, in one line, cut to `LONGEST_TITLE`; empty if it has none."""
    found = _TITLE.search(page[:_TITLE_WITHIN].decode(errors="replace"))
    return "" if found is None else " ".join(html.unescape(found[1]).split())[:LONGEST_TITLE]
