from __future__ import annotations

import pytest

from bench import ROOT, page


@pytest.mark.parametrize("name", page.PAGES)
def test_the_page_says_what_the_benchmarks_left(name: str) -> None:
    """`python -m bench.page` writes it."""
    text = (ROOT / name).read_text()

    assert page.PAGES[name](text, page.read()) == text


def test_a_new_result_takes_the_place_of_the_old_one() -> None:
    text = "\n".join(
        [
            "## A thing: `bench.thing`\n",
            "`python -m bench.thing`\n",
            "Before:\n",
            "| size | ratio |\n| --- | ---: |\n| one | 9 |\n",
            "| promised |\n| --- |\n| nothing |\n",
            "Words that stay.\n",
            "## Another\n",
            "| its own | table |",
        ]
    )
    thing = {
        "command": "chrt -r 1 python -m bench.thing --rounds 3",
        "tables": [{"title": "After", "columns": ["size", "ratio"], "rows": [["one", "1.01"], ["all", ""]]}],
        "checks": [{"what": "one", "limit": 1.1, "measured": 1.01234, "kept": True}],
    }

    assert page.performance(text, {"thing": thing}) == "\n".join(
        [
            "## A thing: `bench.thing`\n",
            "`chrt -r 1 python -m bench.thing --rounds 3`\n",
            "After:\n",
            "| size | ratio |\n| --- | ---: |\n| one | 1.01 |\n| all |  |\n",
            "| promised | at most | measured | kept |\n| --- | ---: | ---: | --- |",
            "| one | 1.1 | 1.012 | yes |\n",
            "Words that stay.\n",
            "## Another\n",
            "| its own | table |",
        ]
    )


def test_a_table_that_the_section_does_not_have_is_an_error() -> None:
    thing = {"command": "", "tables": [], "checks": [{"what": "", "limit": 1, "measured": 1, "kept": True}]}

    with pytest.raises(ValueError, match=r"bench\.thing has 1 tables, and its section 0"):
        page.performance("## A thing: `bench.thing`\n\nWords.\n", {"thing": thing})
