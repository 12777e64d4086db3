"""What a person can set of a control plane."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpulayer_server.core.state import Settings
from gpulayer_server.datafolder import DataFolderError
from gpulayer_server.settings import Kept, read_settings


def test_without_a_file_all_is_as_it_is(tmp_path: Path) -> None:
    assert read_settings(tmp_path) == Settings()


def test_a_file_sets_and_flags_go_before_it(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text(
        '{"keep_jobs": 7, "keep_days": 1.5, "keep_results_days": 7, "client_away_s": 60}'
    )
    found = read_settings(tmp_path, Kept(keep_jobs=0, keep_blobs_bytes=10**9))
    assert (found.keep_jobs, found.keep_days, found.keep_blobs_bytes) == (0, 1.5, 10**9)
    assert (found.keep_results_days, found.client_away_s) == (7.0, 60.0)
    assert found.lost_after_s == Settings().lost_after_s


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "Input data was truncated"),
        ('{"keep_jobs": "all"}', "Expected `int | null`, got `str`"),
        ('{"keep_job": 5}', "unknown field `keep_job`"),
        ('{"keep_days": -1}', ">= 0"),
    ],
)
def test_a_file_that_is_not_right_is_named_with_what_may_be_in_it(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "settings.json").write_text(text)
    with pytest.raises(DataFolderError) as caught:
        read_settings(tmp_path)
    line = str(caught.value)
    assert line.startswith(f"{tmp_path}/settings.json can't be read: ")
    assert words in line
    assert "; it may hold keep_jobs, keep_days, keep_results_days, keep_blobs_bytes" in line
