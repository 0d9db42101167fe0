"""Why two modules part: known causes, each tried on the tensors of the place, the most certain first."""

from padiff.diagnose.causes.explain import explain as explain
from padiff.diagnose.causes.explain import merged as merged
from padiff.diagnose.causes.ops import causes_of_op as causes_of_op
from padiff.diagnose.causes.settings import differing_settings as differing_settings
from padiff.diagnose.causes.training import not_given as not_given
from padiff.diagnose.causes.training import stopped_gradient as stopped_gradient
