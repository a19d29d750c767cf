"""What a browser would make of a page: its elements, attributes, links, identifiers and text."""

import base64
import hashlib
import re
from html.parser import HTMLParser


class Tags(HTMLParser):
    """What a browser would make of the page."""

    #: Elements without an end.
    VOID = ("meta", "br", "img", "input", "link", "hr")

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.links: list[str] = []
        self.ids: list[str] = []
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "xlink:href")]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def assert_page_stands_alone(html: str, *, script: str = "") -> Tags:
    """No script but this one, no handler, nothing from outside, every reference inside of the page; returns what it
    holds. Data in the page are no script.
    """
    scripts = re.findall(r"<script([^>]*)>(.*?)</script>", html, re.DOTALL)
    assert [text for kind, text in scripts if kind != ' type="application/json"'] == ([script] if script else [])
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    allowed += f"; script-src 'sha256-{digest}'" if script else ""
    assert html.count("Content-Security-Policy") == 1
    assert f'<meta http-equiv="Content-Security-Policy" content="{allowed}">' in html
    if script:
        html = html.replace(f"<script>{script}</script>", "")
        html = html.replace('<script type="application/json">', "<data>").replace("</script>", "</data>")
    tags = Tags()
    tags.feed(html)
    tags.close()
    assert tags.open == []
    assert not tags.tags & {"script", "iframe", "object", "embed", "link", "img", "foreignobject", "form", "base"}
    assert not [name for name in tags.attributes if name.startswith("on")]
    assert re.findall(r"(?i)\b(?:https?|ftp|file|data|javascript):|//[a-z]|@import|url\((?!#)", html) == []
    assert all(link.startswith("#") and link[1:] in tags.ids for link in tags.links)
    assert len(tags.ids) == len(set(tags.ids))
    assert set(re.findall(r"url\(#([^)]+)\)", html)) <= set(tags.ids)
    return tags
