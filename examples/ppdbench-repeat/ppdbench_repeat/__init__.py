"""Two methods for ppdbench: importing this package registers them."""

from ppdbench_repeat import after_next as after_next
from ppdbench_repeat import repeat as repeat
