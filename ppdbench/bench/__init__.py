"""Timing, statistics and what is known of the machine."""

import sys

from ppdbench import Verb

sys.modules[__name__].__class__ = Verb
