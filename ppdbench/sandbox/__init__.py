"""Programs that nobody has read, run where they can do no harm.

`execute` starts a fresh interpreter in an empty folder, with next to no environment, and reads
its verdict and a bounded amount of output until a wall-clock limit. Inside, layers are put on
that cannot be taken off again, each as far as the system allows without root:

- `namespaces`: users, processes, network, mounts and IPC of its own, the folder a small tmpfs.
- `landlock`: files are read where Python lies and written in the folder, nowhere else.
- `seccomp`: no sockets, new processes, programs, signals; no reach into other processes.
- `limits`: CPU time, memory, size of files, open files and processes.
- `audit hook`: the same rules as Python's own calls see them. It needs nothing of the system,
  stops accidents and not attackers, and is all there is beside the limits where the kernel
  offers none of the others.

Which of them were in force is part of each result.
"""

from ppdbench.sandbox.outside import Execution, Limits, execute

__all__ = ["Execution", "Limits", "execute"]
