"""A plug-in for pytest: kernels are built so that they watch the memory that they touch.

`make sanitize` loads it, together with the library of the compiler that does the watching.
"""

from __future__ import annotations

from ppdbench.engine.flat import native

native.FLAGS += (
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer"),
    *("-O1", "-g"),
)
