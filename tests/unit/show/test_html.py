"""The report: one file, whole, escaped, readable by everyone."""

import re
from html.parser import HTMLParser

import pytest

from perfkit.results.stats import Ratio
from perfkit.show import document, tables, terminal, units
from perfkit.show import html as report
from perfkit.show.style import Figure, Row
from tests.unit.show.fake_runs import disturbed, session

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&"


class Page(HTMLParser):
    """What a browser would see: tags in order, text, and whether every tag is closed."""

    def __init__(self, source):
        super().__init__()
        self.tags = []
        self.text = ""
        self.open = []
        self.feed(source)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "img", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data

    def all(self, tag):
        return [attributes for found, attributes in self.tags if found == tag]


@pytest.fixture(scope="module")
def page():
    return Page(
        report.page("perfkit: CifarResNet18", tables.report(session(), {session()[0].id: "import torch\n"}))
    )


def test_it_is_well_formed_and_accessible(page):
    assert page.open == []
    assert page.all("html")[0]["lang"] == "en"
    assert len(page.all("title")) == len(page.all("h1")) == len(page.all("main")) == 1
    assert all(cell.get("scope") in ("row", "col") for cell in page.all("th"))
    pictures = page.all("svg")
    assert len(pictures) == 2
    assert all(picture["role"] == "img" and picture["aria-label"] for picture in pictures)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_it_needs_no_network_and_a_disturbance_stands_above_the_table():
    source = report.page("disturbed", tables.report(disturbed(session(gpu=True))))
    assert source.index('class="pk-notice"') < source.index("<table")
    assert not re.findall(r'(?:src|href)\s*=\s*"(?!#)|@import|url\((?!#)', source)


def test_it_has_what_the_terminal_has_and_the_scripts(page):
    text = " ".join(page.text.split())
    for line in terminal.text(tables.report(session()), 300).splitlines():
        for cell in re.split(r"\s{2,}|─+", line.strip()):
            assert cell in text
    assert "import torch" in text


def _everything(text):
    ratio = document.Cell(Ratio(1.5, 1.4, 1.6, "faster"), units.ratio)
    numbers = document.Table((text, "n"), [[text, ratio]], text, text)
    figure = Figure(text, text, [Row(text, (), text)], text)
    nothing = document.Table((text,), [], text, text)
    inner = document.Section(text, [figure, document.Code(f"+{text}\n-{text}", "diff")], folded=True)
    outer = document.Section(text, [numbers, nothing, inner])
    return [text, document.Markdown(text), document.Bullets([text]), outer]


@pytest.mark.parametrize("source", [report.page(EVIL, _everything(EVIL)), report.fragment(_everything(EVIL))])
def test_whatever_a_section_holds_is_text(source):
    page = Page(source)
    assert page.open == []
    assert page.all("script") == page.all("img") == []
    assert page.text.count("alert(1)") >= 9
    assert '<td class="n">1.50× <span class="whole">(1.40–1.60)</span></td>' in source
    assert 'class="pk-add"' in source


def test_a_fragment_is_one_static_output_in_the_ink_of_its_page():
    parts = [*_everything("x"), document.Markdown("## How it works\n\nWith `autocast`.")]
    bundle = report.mimebundle(parts)
    assert bundle["text/plain"] == terminal.text(parts)
    for piece in ("var(--jp-content-font-color1", "<h2>How it works</h2>", "<code>autocast</code>"):
        assert piece in bundle["text/html"]
    assert "<html" not in bundle["text/html"]
