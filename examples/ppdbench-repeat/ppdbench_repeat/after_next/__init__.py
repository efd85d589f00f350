"""After-next: one trained matrix guesses the token after the next one."""

from ppdbench_repeat.after_next import plan as plan
from ppdbench_repeat.after_next import strategy as strategy
