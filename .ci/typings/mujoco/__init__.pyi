# MuJoCo's classes and functions live in compiled modules that carry no types.
from typing import Any

def __getattr__(name: str) -> Any: ...
