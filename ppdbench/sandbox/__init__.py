"""Programs that nobody has read, run where they can do no harm and judged where they are not.

`outside.execute` starts two fresh interpreters, each in an empty folder, with next to no
environment. One runs the program and answers calls of its functions; the other runs the tests,
which call them from afar and get plain data, so that the verdict is made where no line of the
program runs.
Layers are put on that cannot be taken off again, each as far as the system allows:

- `bubblewrap`: where it is installed, processes, network and files of its own.
- `namespaces`: without it, users, processes, network, mounts and IPC of its own.
- `own root`: in these, a root that has nothing but Python, read-only, and a small tmpfs.
- `landlock`: files are read where Python lies and written in the folder, nowhere else.
- `seccomp`: no sockets, new processes, programs, signals; no modes, owners and times of files;
  no way out of its group; no reach into other processes.
- `limits`: CPU time, memory, size of files, open files and processes.
- `audit hook`: the same rules as Python's own calls see them. It needs nothing of the system
  and stops accidents, not attackers.

Files must be held by one of the first four, everything else by seccomp and limits; where they
are not, nothing runs (`held`). Which layers were in force is part of each result.
"""
