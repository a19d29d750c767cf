"""What a browser would make of a page: its elements, attributes, links, identifiers and text."""

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


def assert_page_stands_alone(html: str) -> Tags:
    """No script, no handler, nothing from outside, every reference inside of the page; returns what it holds."""
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
