from __future__ import annotations

from pathlib import Path

from engine.commands.settings import SECTIONS, markdown
from engine.config import settings

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_every_setting_is_in_one_section():
    named = [name for names in SECTIONS.values() for name in names]
    assert sorted(named) == sorted(setting.name for setting in settings())


def test_the_readme_has_the_table_of_settings_as_it_is_now():
    assert markdown() in README, 'put the output of "vitrine config --markdown" into README.md'


def test_the_readme_names_every_flag():
    for setting in settings():
        assert f"`{setting.flag}`" in README
