# What type checkers see: the functions come from `api` when they are first asked for.

from types import ModuleType

from ppdbench.api import Model as Model
from ppdbench.api import bench as bench
from ppdbench.api import decode as decode
from ppdbench.api import load as load
from ppdbench.api import probe as probe
from ppdbench.api import read as read
from ppdbench.errors import PpdbenchError as PpdbenchError
from ppdbench.report.result import Result as Result

__version__: str

class Verb(ModuleType): ...
