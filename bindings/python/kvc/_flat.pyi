# Made by SWIG from bindings/kvc.i: one function for each of kvc.h. Only this package uses it.
from typing import Any

def __getattr__(name: str) -> Any: ...
