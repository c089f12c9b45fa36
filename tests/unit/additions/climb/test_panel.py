"""The page of `pk.climb()`: whole, in a sandbox, and without a network."""

import re
from html import unescape

from perfkit import notebook as pk


def test_the_page_is_framed_whole_and_loads_nothing():
    framed = pk.climb().data
    assert framed.count("<iframe") == 1 and 'sandbox="allow-scripts"' in framed
    assert 'title="Climb it yourself"' in framed
    page = unescape(re.search(r'srcdoc="(.*?)"', framed, re.S)[1])
    assert page.lstrip().lower().startswith("<!doctype html>") and page.rstrip().endswith("</html>")
    assert not re.findall(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//|@import|fetch\(|XMLHttpRequest""", page)
