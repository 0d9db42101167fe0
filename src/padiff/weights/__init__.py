"""Which tensor of base fills which of raw: a plan first, the copy after."""

from padiff.weights.apply import apply_plan as apply_plan
from padiff.weights.apply import build as build
from padiff.weights.apply import is_filled as is_filled
from padiff.weights.by_use import plan_by_use as plan_by_use
from padiff.weights.plan import FindSpecial as FindSpecial
from padiff.weights.plan import plan_weights as plan_weights
