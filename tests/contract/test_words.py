"""English: phrases that read as translated become fewer; the counts of a file may only fall."""

import json
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
KNOWN = Path(__file__).with_name("words.json")
FORBIDDEN = {
    "beside": "with, next to, compared with",
    "stands": "is",
    "of its own": "its own",
    "of your own": "your own",
    "of one's own": "your own",
    "afresh": "again, in new processes",
    "anew": "again",
    "other ones": "different",
    "nobody need": "so this is skipped",
    "(?<!there )is no(?! longer)": "is not a",
    "(?<!there )are no(?! longer)": "are not",
    "times faster": "times as fast",
    "computing alone": "compute only",
}
"""Patterns, each with what a native writes."""
PLACES = ("perfkit/**/*.py", "perfkit/**/*.md", "docs/*.md", "docs/teaching/*.md", "notebooks/src/*.py")


def counted(places=PLACES):
    """How often the phrases are in each file, where they are."""
    found = {}
    for file in sorted({file for place in places for file in ROOT.glob(place)}):
        text = re.sub(r"\s+", " ", file.read_text(encoding="utf-8")).lower()
        counts = Counter({phrase: len(re.findall(rf"\b{phrase}\b", text)) for phrase in FORBIDDEN})
        if present := {phrase: count for phrase, count in counts.items() if count}:
            found[str(file.relative_to(ROOT))] = present
    return found


def test_what_reads_as_translated_only_becomes_less():
    """After an edit that removes some: write the file again with this module as a program."""
    known, more = json.loads(KNOWN.read_text(encoding="utf-8")), []
    for name, counts in counted().items():
        for phrase, count in counts.items():
            allowed = known.get(name, {}).get(phrase, 0)
            if count > allowed:
                more.append(f"{name}: '{phrase}' {count} times, was {allowed}. Write: {FORBIDDEN[phrase]}")
    assert not more, "\n".join(more)


def test_a_phrase_that_is_added_is_seen(monkeypatch):
    clean = ("perfkit/notebook/panel.py", "perfkit/cli/options.py", "perfkit/studies/job.py")
    assert counted(clean) == {}, "written as it should be"
    monkeypatch.setitem(FORBIDDEN, "panel", "a word that is there")
    assert "panel" in counted(clean)["perfkit/notebook/panel.py"]


if __name__ == "__main__":
    KNOWN.write_text(json.dumps(counted(), indent=1) + "\n", encoding="utf-8")
