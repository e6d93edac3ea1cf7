"""Add to the pages of the site what their theme leaves out for readers who use a keyboard or a screen reader."""

from pathlib import Path

ADDED = {
    'role="heading">': 'role="heading" aria-level="2">',
    '<aside class="sidebar-drawer">': '<aside class="sidebar-drawer" aria-label="Pages">',
    '<aside class="toc-drawer">': '<aside class="toc-drawer" aria-label="On this page">',
    '<th class="head"><p></p></th>': '<td class="head"></td>',
    '<div class="table-wrapper colwidths-auto docutils container">': (
        '<div class="table-wrapper colwidths-auto docutils container" tabindex="0">'
    ),
    "<pre><span></span>": '<pre tabindex="0"><span></span>',
}
"""What Sphinx and furo write → the same with a level, a name, or a way to scroll by keyboard."""


def mend_pages(folder: Path) -> None:
    """Mend all pages of a built site; one that is mended already stays as it is."""
    for path in folder.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        if (mended := mend_page(text)) != text:
            path.write_text(mended, encoding="utf-8")


def mend_page(text: str) -> str:
    """Return a page with what its theme leaves out."""
    for before, after in ADDED.items():
        text = text.replace(before, after)
    return text
