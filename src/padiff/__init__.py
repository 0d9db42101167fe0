"""Finds where two deep-learning models that should compute the same thing first part, and why."""

from padiff.api import compare as compare
from padiff.autodiff import LayerMap as LayerMap
from padiff.autodiff import add_special_init as add_special_init
from padiff.autodiff import assign_weight as assign_weight
from padiff.autodiff import auto_diff as auto_diff
from padiff.autodiff import check_dataloader as check_dataloader
from padiff.autodiff.later import capture as capture
from padiff.autodiff.later import check_grads as check_grads
from padiff.autodiff.later import check_params as check_params
from padiff.autodiff.later import check_report as check_report
from padiff.autodiff.later import check_weights as check_weights
from padiff.autodiff.later import compare_dumps as compare_dumps
from padiff.autodiff.later import create_model as create_model
from padiff.autodiff.later import get_dump_root_path as get_dump_root_path
from padiff.autodiff.later import set_dump_root_path as set_dump_root_path
from padiff.inputs import Inputs as Inputs
from padiff.records import Tolerance as Tolerance
from padiff.result import Result as Result

__version__ = "1.0.0.dev0"
