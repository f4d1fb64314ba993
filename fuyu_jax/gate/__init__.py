"""The gate: does a decision update improve the deployed policy? Pure functions of outcome tables, fixed beforehand."""

from fuyu_jax.gate.decision import Clause as Clause
from fuyu_jax.gate.decision import Study as Study
from fuyu_jax.gate.decision import Verdict as Verdict
from fuyu_jax.gate.decision import decide as decide
from fuyu_jax.gate.decision import holm as holm
from fuyu_jax.gate.interval import Interval as Interval
from fuyu_jax.gate.interval import bootstrap_t as bootstrap_t
from fuyu_jax.gate.panel import Panel as Panel
from fuyu_jax.gate.panel import difference as difference
