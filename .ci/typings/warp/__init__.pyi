# Not installed where types are checked.
from typing import Any

def __getattr__(name: str) -> Any: ...
