"""The results of measurements: runs, statistics, the store. torch is never imported."""

from perfkit.results.comparison import Comparison
from perfkit.results.parity import Check, Parity
from perfkit.results.rounds import Pairing, Role, Rounds, aa_pairs
from perfkit.results.run import Run, continued, with_rate_of
from perfkit.results.schema import AGAIN, Busiest, Decision, Mechanism, Raw
from perfkit.results.stats import CLEAN, MIN_EFFECT, Estimate, Ratio, Spread
from perfkit.results.store import RunStore, StageDecision, keep, warning_store

__all__ = [
    "AGAIN", "CLEAN", "MIN_EFFECT", "Busiest", "Check", "Comparison", "Decision",
    "Estimate", "Mechanism", "Pairing", "Parity", "Ratio", "Raw", "Role", "Rounds", "Run", "RunStore",
    "Spread", "StageDecision", "aa_pairs", "continued", "keep", "warning_store", "with_rate_of",
]  # fmt: skip
