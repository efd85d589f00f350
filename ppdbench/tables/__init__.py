"""The papers' tables with measured numbers beside the printed ones; no torch, no model."""

from ppdbench.tables import ppd as ppd
from ppdbench.tables.base import TABLES as TABLES
from ppdbench.tables.base import PaperTable as PaperTable
