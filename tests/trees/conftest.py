"""Trees ask how the guesses of a method come, which the methods say."""

from ppdbench import methods as methods
