"""The pages of the documentation that people write."""

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
DOCS = REPOSITORY / "docs"


def list_pages() -> dict[str, Path]:
    """Return name below docs/ → page: those of docs/, and those in a folder with the name of one of them."""
    pages = sorted(DOCS.glob("*.md"))
    pages += [each for page in pages for each in sorted((DOCS / page.stem).glob("*.md"))]
    return {str(page.relative_to(DOCS)): page for page in pages}
