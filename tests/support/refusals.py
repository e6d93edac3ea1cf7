"""Checks that an error has its code and names the data it is about, whatever the words of its message."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from embodied_rl.interfaces.errors import UserError


@contextmanager
def refuses(code: str, *data: object, kind: type[UserError] = UserError) -> Iterator[pytest.ExceptionInfo[UserError]]:
    """Check that the context raises an error of a kind with this code, whose message holds all `data`.

    Args:
        code: of the error, such as "checkpoint-damaged".
        data: keys, paths, numbers or names that the message must contain; no words.
    """
    with pytest.raises(kind) as raised:
        yield raised
    assert raised.value.code == code, f"{raised.value} [{raised.value.code}]"
    for each in data:
        assert str(each) in str(raised.value), raised.value
