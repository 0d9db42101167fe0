"""Two models become pairs: modules before they run, calls while they run. What has no partner is listed."""

from padiff.align.calls import CallPairing as CallPairing
from padiff.align.gathered import gathered_of as gathered_of
from padiff.align.likeness import ACTIVATIONS as ACTIVATIONS
from padiff.align.likeness import PASSIVE as PASSIVE
from padiff.align.modules import pair_modules as pair_modules
from padiff.align.op_names import FREE_LAYOUT as FREE_LAYOUT
from padiff.align.op_names import MOVING as MOVING
from padiff.align.op_names import OWN_LAYOUT as OWN_LAYOUT
from padiff.align.op_names import UNDETERMINED as UNDETERMINED
from padiff.align.op_names import same_thing as same_thing
from padiff.align.ops import pair_ops as pair_ops
from padiff.align.orders import Repeated as Repeated
from padiff.align.orders import orders_of as orders_of
from padiff.align.slots import in_whatever_order as in_whatever_order
from padiff.align.slots import name_of as name_of
from padiff.align.slots import pair_slots as pair_slots
from padiff.align.slots import wherever_they_are as wherever_they_are
from padiff.align.stretches import scattered_of as scattered_of
from padiff.align.stretches import stretches_of as stretches_of
from padiff.align.tags import tag_key as tag_key
from padiff.align.tags import tags_of as tags_of
