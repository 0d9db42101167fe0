"""The documented door: a thin translation into the native one, with the ``[AutoDiff]`` log."""

from padiff.autodiff.auto_diff import auto_diff as auto_diff
from padiff.autodiff.check_params import check_grads as check_grads
from padiff.autodiff.check_params import check_params as check_params
from padiff.autodiff.check_params import check_weights as check_weights
from padiff.autodiff.check_report import check_report as check_report
from padiff.autodiff.dataloader import check_dataloader as check_dataloader
from padiff.autodiff.dump_root import get_dump_root_path as get_dump_root_path
from padiff.autodiff.dump_root import set_dump_root_path as set_dump_root_path
from padiff.autodiff.layer_map import LayerMap as LayerMap
from padiff.autodiff.proxy import create_model as create_model
from padiff.autodiff.weights import assign_weight as assign_weight
from padiff.weights.special import add_special_init as add_special_init
