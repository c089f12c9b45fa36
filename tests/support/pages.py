"""Pages that a notebook shows in a frame."""

import re
from html import unescape


def assert_framed_whole(framed: str, title: str) -> None:
    """It is in a sandbox with this title, is whole, and loads nothing from a network."""
    assert framed.count("<iframe") == 1 and 'sandbox="allow-scripts"' in framed
    assert f'title="{title}"' in framed
    page = unescape(re.search(r'srcdoc="(.*?)"', framed, re.S)[1])
    assert page.lstrip().lower().startswith("<!doctype html>") and page.rstrip().endswith("</html>")
    assert not re.findall(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//|@import|fetch\(|XMLHttpRequest""", page)
