"""The commands of docs/django.md, in a new project, with the Django of this environment."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.pages.console import Console, files, steps

if TYPE_CHECKING:
    from support.brokers.servers import ShoalProcess

PAGE = (Path(__file__).parents[3] / "docs/django.md").read_text()


@pytest.mark.nightly
def test_the_commands_of_the_page_print_what_it_shows(tmp_path: Path, broker: ShoalProcess) -> None:
    page = PAGE.replace("127.0.0.1:9092", broker.bootstrap)
    if not find_spec("django.tasks"):  # As the page says for an older Django.
        page = page.replace("from django.tasks import", "from django_tasks import")
    start, *others = steps(page)
    with Console(tmp_path, broker.bootstrap) as console:
        console.try_all([start])
        for name, text in files(page).items():
            with (tmp_path / name).open("a") as file:
                file.write(text)
        console.try_all(others)
