"""Verified search: a policy proposes edits, its distance head ranks programs, and only the public examples accept.

See `docs/search.md` for what is counted and why this is no Monte Carlo tree search.
"""

from fuyu_jax.search.advice import ask_policy as ask_policy
from fuyu_jax.search.found import Answer as Answer
from fuyu_jax.search.found import Found as Found
from fuyu_jax.search.found import all_right as all_right
from fuyu_jax.search.guide import GUIDES as GUIDES
from fuyu_jax.search.guide import Guide as Guide
from fuyu_jax.search.guide import Limits as Limits
from fuyu_jax.search.lanes import Searcher as Searcher
