"""The papers' tables with measured numbers beside the printed ones; no torch, no model."""

from ppdbench.tables import hidden_transfer as hidden_transfer
from ppdbench.tables import hidden_transfer_figures as hidden_transfer_figures
from ppdbench.tables import layerskip as layerskip
from ppdbench.tables import layerskip_quality as layerskip_quality
from ppdbench.tables import layerskip_reuse as layerskip_reuse
from ppdbench.tables import layerskip_training as layerskip_training
from ppdbench.tables import ppd_figures as ppd_figures
from ppdbench.tables import ppd_heads as ppd_heads
from ppdbench.tables import ppd_latency as ppd_latency
from ppdbench.tables import ppd_matches as ppd_matches
from ppdbench.tables import ppd_prompts as ppd_prompts
from ppdbench.tables import ppd_sampling as ppd_sampling
from ppdbench.tables import prompt_ppd as prompt_ppd
from ppdbench.tables import prompt_ppd_claims as prompt_ppd_claims
from ppdbench.tables import prompt_ppd_variants as prompt_ppd_variants
from ppdbench.tables.base import TABLES as TABLES
from ppdbench.tables.base import PaperTable as PaperTable
