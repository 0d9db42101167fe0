"""Names of ops that mean the same, as data: in one framework or across two, as functions, methods or operators."""

from __future__ import annotations

import functools

SAME = """
add radd iadd add_n
sub subtract rsub isub
mul multiply rmul imul scale
div divide true_divide truediv rtruediv rdiv itruediv
floor_divide floordiv rfloordiv
remainder mod rmod fmod
neg negative
pow rpow square ipow
matmul mm bmm rmatmul imatmul mv dot
linear
addmm baddbmm
einsum
scaled_dot_product_attention flash_attention flash_attn memory_efficient_attention scaled_dot_product_flash_attention
transpose permute t T mT mH H numpy_T swapaxes swapdims movedim moveaxis adjoint
reshape view flatten unflatten view_as reshape_as ravel
squeeze unsqueeze expand_dims
getitem slice narrow select index strided_slice
setitem index_put index_fill masked_scatter scatter set_value
gather take_along_axis take_along_dim gather_nd index_sample
index_select take embedding
split chunk split_with_sizes tensor_split unbind unstack hsplit
cat concat concatenate hstack vstack
stack
expand broadcast_to expand_as repeat tile broadcast_tensors
repeat_interleave
masked_fill where
softmax
log_softmax
relu relu6 hardtanh clamp_min
gelu
silu swish
sigmoid
tanh
softplus
leaky_relu
elu selu celu
hardswish hardsigmoid
mish
glu swiglu
mean
sum nansum
max amax maximum
min amin minimum
prod
var
std
norm p_norm vector_norm linalg_norm
normalize
cumsum
cumprod
sqrt
rsqrt
exp
log
abs absolute
sin
cos
clip clamp
layer_norm native_layer_norm
rms_norm
group_norm
batch_norm
instance_norm
conv1d
conv2d
conv3d
conv_transpose1d conv1d_transpose
conv_transpose2d conv2d_transpose
conv_transpose3d conv3d_transpose
max_pool1d
max_pool2d
avg_pool1d
avg_pool2d
adaptive_avg_pool1d
adaptive_avg_pool2d
adaptive_max_pool2d
interpolate upsample
pad
unfold
fold
pixel_shuffle
pixel_unshuffle
grid_sample
affine_grid
one_hot
dropout alpha_dropout feature_dropout dropout2d dropout1d
cross_entropy
nll_loss
mse_loss
binary_cross_entropy_with_logits
argmax
argmin
argsort
sort
topk
tril
triu
roll
flip
arange range
linspace
ones ones_like new_ones
zeros zeros_like new_zeros
full full_like new_full
empty empty_like new_empty
eye
tensor to_tensor as_tensor scalar_tensor
gt greater_than
lt less_than
ge greater_equal
le less_equal
eq equal
ne not_equal
logical_and bitwise_and and rand
logical_or bitwise_or or
logical_not bitwise_not invert
to cast astype type to_copy float half double bfloat16 int long bool type_as
clone contiguous detach assign data alias lift_fresh lift_fresh_copy
complex view_as_complex as_complex polar
view_as_real as_real
real
imag
outer
meshgrid
logsumexp
erf
reciprocal
sign
floor
ceil
round
"""
"""One line for each thing; the first word names it."""

_MOVING = """
    transpose reshape squeeze getitem split cat stack expand repeat_interleave clone to index_select gather
"""
MOVING = frozenset(_MOVING.split())
"""What makes no new numbers, only puts them elsewhere."""
FREE_LAYOUT = frozenset({"conv1d", "conv2d", "conv3d"})
"""What takes its tensors in another order of axes if an argument says so."""
OWN_LAYOUT = frozenset({"scaled_dot_product_attention"})
"""What takes its tensors in another order of axes from one framework to the other."""
UNDETERMINED = frozenset({"empty"})
"""What returns whatever the memory held."""

_thing = {word: line.split()[0] for line in SAME.strip().splitlines() for word in line.split()}


@functools.cache
def same_thing(kind: str) -> str:
    """The one word for what an op does, from the name people know it by; its own last part where no table has it."""
    parts = kind.split(".")
    last = parts[3] if parts[:2] == ["torch", "ops"] and len(parts) > 3 else parts[-1]  # before its overload's name
    word = last.strip("_")
    if word in _thing:
        return _thing[word]
    plain = word.lower()
    return _thing.get(plain, plain or last)
