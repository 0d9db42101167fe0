"""The only folder that knows torch and paddle: one adapter per framework behind one protocol."""

from padiff.frameworks.protocol import Adapter as Adapter
from padiff.frameworks.registry import adapter_named as adapter_named
from padiff.frameworks.registry import adapter_of_model as adapter_of_model
from padiff.frameworks.registry import adapter_of_optimizer as adapter_of_optimizer
from padiff.frameworks.registry import adapter_of_tensor as adapter_of_tensor
from padiff.frameworks.tree import module_tree as module_tree
