"""A preprocessor of mdBook (docs/book.toml): links that leave docs/ lead to the repository, because the book has no such page."""

import json
import posixpath
import re
import sys

REPOSITORY = "https://github.com/callboard-rs/callboard/blob/main/"


def rewritten(text, page):
    def link(found):
        target, _, anchor = found[1].partition("#")
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target))
        if "://" in target or not target or path.startswith("docs/"):
            return found[0]
        return f"]({REPOSITORY}{path}{'#' + anchor if anchor else ''})"

    return re.sub(r"\]\(([^)\s]+)\)", link, text)


def walk(items):
    for item in items:
        chapter = item.get("Chapter") if isinstance(item, dict) else None
        if chapter:
            if chapter["path"]:
                chapter["content"] = rewritten(chapter["content"], chapter["path"])
            walk(chapter["sub_items"])


if __name__ == "__main__":
    if sys.argv[1:2] == ["supports"]:
        sys.exit(0)
    _, book = json.load(sys.stdin)
    walk(book.get("items") or book["sections"])
    json.dump(book, sys.stdout)
