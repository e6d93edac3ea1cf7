"""Error codes survive what errors go through: pickling, a worker's process, and the terminal."""

import pickle

import pytest

from embodied_rl.cli.main import main
from embodied_rl.interfaces.errors import UserError
from tests.support.refusals import refuses


class _OwnError(UserError):
    pass


def test_an_error_keeps_its_code_when_it_is_pickled() -> None:
    error = pickle.loads(pickle.dumps(_OwnError("no file at x", code="file-missing")))
    assert (type(error), str(error), error.code) == (_OwnError, "no file at x", "file-missing")


def test_a_check_of_a_refusal_compares_code_and_data() -> None:
    def fail() -> None:
        raise UserError("no file at x", code="file-missing")

    with refuses("file-missing", "x"):
        fail()
    with pytest.raises(AssertionError, match="file-missing"), refuses("file-damaged"):
        fail()
    with pytest.raises(AssertionError, match="no file"), refuses("file-missing", "another"):
        fail()


def test_the_terminal_shows_the_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no-such-command"]) == 2
    assert "[command-unknown]" in capsys.readouterr().err
