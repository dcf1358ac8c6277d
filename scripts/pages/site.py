"""MkDocs hooks: the README as first page, linked files outside docs/, and the order of the search.

Pages link to records, recipes and scripts of the repository. Each linked file is added to the site
below `repository/`: program texts as pages, other files unchanged.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parents[2]
_LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
_LANGUAGES = {".py": "python", ".sh": "bash", ".yaml": "yaml", ".toml": "toml", "": "text"}


def on_files(files: Files, config: Any) -> Files:
    """Add the README and the files outside docs/ that pages link to."""
    read = {file.src_uri: ROOT / "docs" / file.src_uri for file in files.documentation_pages()}
    read["index.md"] = ROOT / "README.md"
    # A page of the repository, such as a record's README, may link to further files.
    while read:
        found: dict[str, Path] = {}
        for uri, path in read.items():
            if uri not in files.src_uris:
                _add(files, config, uri, path)
            if path.suffix != ".md":
                continue
            for target in _LINK.findall(path.read_text()):
                aim = _aim(path, target[1])
                if aim and _place(aim) not in files.src_uris | read.keys():
                    found[_place(aim)] = aim
        read = found
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Replace the targets of links by their places in the site; rank guides before references."""
    del config, files
    if page.file.src_uri.startswith(("api/", "repository/")):
        page.meta["search"] = {"boost": 0.3}
    path = _source(page.file.src_uri)
    if path.suffix != ".md":
        return markdown

    def pointed(link: re.Match[str]) -> str:
        aim = _aim(path, link[2])
        if aim is None:
            return link[0]
        uri = _place(aim)
        return link[1] + posixpath.relpath(uri, posixpath.dirname(page.file.src_uri)) + link[3]

    return _LINK.sub(pointed, markdown)


def _aim(path: Path, target: str) -> Path | None:
    """Return the file of a link in ``path``; None for an address or a link within a page."""
    if re.match(r"[a-z]+:", target):
        return None
    aim = (path.parent / target).resolve()
    return aim if aim.is_file() and aim.is_relative_to(ROOT) else None


def _place(path: Path) -> str:
    """Return the place of a file of the repository in the site."""
    if path == ROOT / "README.md":
        return "index.md"
    if path.is_relative_to(ROOT / "docs"):
        return path.relative_to(ROOT / "docs").as_posix()
    uri = f"repository/{path.relative_to(ROOT).as_posix()}"
    return f"{uri}.md" if path.suffix in _LANGUAGES else uri


def _source(uri: str) -> Path:
    """Return the file of a place: the inverse of ``_place``."""
    if uri == "index.md":
        return ROOT / "README.md"
    if not uri.startswith("repository/"):
        return ROOT / "docs" / uri
    path = ROOT / uri.removeprefix("repository/")
    return path if path.exists() else path.with_suffix("")


def _add(files: Files, config: Any, uri: str, path: Path) -> None:
    content = None
    if path.suffix in _LANGUAGES:
        name = path.relative_to(ROOT).as_posix()
        content = f"# {name}\n\n````{_LANGUAGES[path.suffix]}\n{path.read_text()}````\n"
    elif path.suffix == ".md":
        content = path.read_text()
    source = {"content": content} if content else {"abs_src_path": str(path)}
    outside = InclusionLevel.UNDEFINED if uri == "index.md" else InclusionLevel.NOT_IN_NAV
    files.append(File.generated(config, uri, inclusion=outside, **source))
