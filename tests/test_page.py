"""The HTML report: one file, balanced, with every word shown as it is and the same tables as the Markdown."""

import base64
import hashlib
import json
import re

import pytest
from episode_samples import NASTY, sample_episode
from page_reader import Page
from run_samples import sample_outcomes, write_run

from fuyu_jax.runs import markdown, page
from fuyu_jax.runs.document import Bullets, Code, Document, Fold, Heading, Image, Section, Table, Text, code
from fuyu_jax.runs.errors import UserError
from fuyu_jax.runs.folder import RunFolder
from fuyu_jax.runs.report import EPISODES, read_episodes, write_report

PIXEL = bytes.fromhex("89504e470d0a1a0a")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run folder with its reports; an arm, a command and a processor carry markup."""
    root = tmp_path_factory.mktemp("run")
    outcomes = sample_outcomes(NASTY.replace("\u2028", " "), rounds=0)
    episodes = [sample_episode(split, task) for split in ("val_mixed", "<td>") for task in range(2)]
    folder = write_run(root / "run", outcomes, manifest={"command": f"python {NASTY}"}, episodes=episodes)
    write_report(folder)
    return folder


@pytest.fixture(scope="module")
def html(run):
    return (run / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def read(html):
    return Page(html)


def everything(words):
    """A document with every kind of part, each saying the words."""
    shown = Table([words, "n"], [[words, "1"], ["", "2"]], note=words)
    parts = [shown, Text(words), Bullets([words, code(words)]), Code(words), Heading(words), Fold(words, shown)]
    return Document(words, words, [Section(words, [*parts, Image("a.png", words)])])


def plain(words):
    """What a page shows of words: backticks are marks."""
    return words.replace("`", "")


def test_every_kind_of_part_shows_markup_as_text(tmp_path):
    (tmp_path / "a.png").write_bytes(PIXEL)
    read = Page(page.render(everything(NASTY), tmp_path))
    assert read.tags["td"] == 8 and read.tags["th"] == 4 and read.tags["table"] == 2
    assert read.tags["script"] == 1 and "alert" not in read.blocks[0][1]
    assert read.tables[0][1][0] == NASTY, "a cell is plain text"
    assert read.text.count(NASTY) >= 9 and read.text.count(plain(NASTY)) >= 3
    assert ("img", "alt", f"Chart: {NASTY}") in read.attributes
    assert "49" not in read.text, "what looks like a template is none"


def test_the_report_of_a_run_is_balanced_and_literal(read, run):
    assert NASTY.replace("`", "'").replace("\u2028", "").split("{{")[0].split("<!--")[0] in read.text
    assert "A | B <c>" in read.text, "the processor's name"
    assert read.tags["script"] == 3 and "b" not in read.tags
    assert all(len({len(row) for row in rows}) == 1 for rows in read.tables)
    assert not re.search(r"\b(nan|None|undefined)\b", read.text)


def test_nothing_is_fetched(html, read):
    for _, name, value in read.attributes:
        if name in ("src", "href"):
            assert value.startswith(("data:", "#")), value
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|https?://", html)
    images = [value for tag, name, value in read.attributes if (tag, name) == ("img", "src")]
    assert len(images) == 11
    assert all(base64.b64decode(image.split(",")[1]).startswith(PIXEL) for image in images)


def test_no_script_runs_but_those_of_the_page(html, read):
    policy = next(value for _, name, value in read.attributes if name == "content" and "script-src" in value)
    scripts = [text for about, text in read.blocks if about.get("type") != "application/json"]
    hashes = ["'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'" for text in scripts]
    assert re.search(r"script-src ([^;]*);", policy)[1].split() == hashes
    style = re.search(r"<style>(.*?)</style>", html, re.DOTALL)[1]
    assert base64.b64encode(hashlib.sha256(style.encode()).digest()).decode() in policy
    assert policy.startswith("default-src 'none'")
    source = "".join(scripts)
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|DOMParser", source
    )


def test_the_page_carries_the_episodes_unchanged(read, run):
    (block,) = [text for about, text in read.blocks if about.get("id") == "episodes"]
    assert not set(block) & set("<>&\u2028\u2029")
    assert json.loads(block) == read_episodes(run)
    assert len(read_episodes(run)) == 4, "a line separator in a prompt ends no line"


def test_both_reports_have_the_same_tables(run, read):
    text = (run / "report.md").read_text()
    blocks = re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    assert len(blocks) == len(read.tables) > 15
    for block, rows in zip(blocks, read.tables, strict=True):
        lines = [re.split(r"(?<!\\)\|", line)[1:-1] for line in block.splitlines()]
        shown = [[" ".join(re.sub(r"\\(.)", r"\1", cell).split()) for cell in line] for line in lines]
        assert [shown[0], *shown[2:]] == [[" ".join(cell.split()) for cell in row] for row in rows]


def test_labels_roles_and_landmarks(read):
    named = {(tag, name) for tag, name, _ in read.attributes}
    assert ("html", "lang") in named and read.tags["main"] == read.tags["nav"] == read.tags["h1"] == 1
    assert read.tags["label"] == 3 and ("p", "aria-live") in named
    regions = [value for tag, name, value in read.attributes if (tag, name) == ("div", "tabindex")]
    assert len(regions) == read.tags["table"], "wide tables scroll by keyboard"
    ids = [value for _, name, value in read.attributes if name == "id"]
    assert len(set(ids)) == len(ids)
    targets = [value[1:] for tag, name, value in read.attributes if (tag, name) == ("a", "href")]
    assert set(targets) <= set(ids)


def test_a_run_without_episodes_has_no_player(tmp_path):
    folder = write_run(tmp_path / "run")
    write_report(folder)
    read = Page((folder / "report.html").read_text(encoding="utf-8"))
    assert "Watch it think" not in read.text and read.tags["script"] == 1


def test_a_hundred_long_episodes_stay_small(run):
    episodes = [sample_episode(task=task, edits=12, stopped=False) for task in range(100)]
    assert len(page.render(Document("t", "a", []), run, episodes)) < 2_500_000
    assert (run / "report.html").stat().st_size < 2_500_000, "together under 5 MB"


def test_numbers_that_json_lacks(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        page.to_script_json([float("nan")])
    folder = RunFolder.create(str(tmp_path / "run"), "run")
    folder.write_json_lines("x.jsonl", [{"a": float("nan")}, {"b": (1, float("inf"))}])
    assert (folder.path / "x.jsonl").read_text() == '{"a": null}\n{"b": [1, null]}\n'


def test_damaged_episodes_are_named(tmp_path):
    (tmp_path / EPISODES).write_text('{"task": 1}\n{"task"')
    with pytest.raises(UserError, match=r"episodes\.jsonl is damaged"):
        read_episodes(tmp_path)


def test_markdown_of_every_kind_of_part():
    text = markdown.render(everything("a_<b> | `c`"))
    assert text.startswith("# a\\_\\<b\\> \\| \\`c\\`\n\n**a\\_")
    assert "<details><summary>a_&lt;b&gt; | `c`</summary>" in text and "![a\\_\\<b\\> \\| \\`c\\`](a.png)" in text
    assert "\n\na\\_\\<b\\> \\| `c`\n\n" in text and "```\na_<b> | `c`\n```" in text
