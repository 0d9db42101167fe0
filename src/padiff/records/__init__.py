"""The frozen records handed from one stage to the next. They know nobody, and hold no framework."""

from padiff.records.comparisons import (
    Calibration,
    Comparison,
    Mismatch,
    Numbers,
    Outcome,
    Picture,
    StepComparison,
    Tolerance,
)
from padiff.records.divergences import Cause, Divergence, Fault, Interruption, OpPair
from padiff.records.draws import Draw, DrawGap
from padiff.records.modules import Anchors, Group, ModuleNode, ModulePairs, ModuleTree, Order, Rules, Stretch, Usage
from padiff.records.plain import PlainData, record
from padiff.records.shapes import merged_axes
from padiff.records.traces import (
    FIRST_OP,
    UNORDERED,
    Call,
    Noise,
    Slot,
    SourceLine,
    StepTrace,
    Unmatched,
)
from padiff.records.values import MASKED, Array, Frame, Phase, Reason, Role, Side, TensorSpec, Value, Verdict
from padiff.records.weights import Choice, WeightEntry, WeightPlan, WeightProblem, WeightSource

__all__ = [
    "FIRST_OP",
    "MASKED",
    "UNORDERED",
    "Anchors",
    "Array",
    "Calibration",
    "Call",
    "Cause",
    "Choice",
    "Comparison",
    "Divergence",
    "Draw",
    "DrawGap",
    "Fault",
    "Frame",
    "Group",
    "Interruption",
    "Mismatch",
    "ModuleNode",
    "ModulePairs",
    "ModuleTree",
    "Noise",
    "Numbers",
    "OpPair",
    "Order",
    "Outcome",
    "Phase",
    "Picture",
    "PlainData",
    "Reason",
    "Role",
    "Rules",
    "Side",
    "Slot",
    "SourceLine",
    "StepComparison",
    "StepTrace",
    "Stretch",
    "TensorSpec",
    "Tolerance",
    "Unmatched",
    "Usage",
    "Value",
    "Verdict",
    "WeightEntry",
    "WeightPlan",
    "WeightProblem",
    "WeightSource",
    "merged_axes",
    "record",
]
