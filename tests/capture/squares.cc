// An operator of somebody's own: factor * x * x, with its gradient.
#include <vector>

#include "paddle/extension.h"

std::vector<paddle::Tensor> Forward(const paddle::Tensor& x, float factor) {
  auto out = paddle::empty_like(x);
  const float* from = x.data<float>();
  float* to = out.data<float>();
  for (int64_t i = 0; i < x.numel(); ++i) to[i] = factor * from[i] * from[i];
  return {out};
}

std::vector<paddle::Tensor> Backward(const paddle::Tensor& x, const paddle::Tensor& above, float factor) {
  auto out = paddle::empty_like(x);
  const float* from = x.data<float>();
  const float* given = above.data<float>();
  float* to = out.data<float>();
  for (int64_t i = 0; i < x.numel(); ++i) to[i] = 2 * factor * from[i] * given[i];
  return {out};
}

std::vector<std::vector<int64_t>> Shape(std::vector<int64_t> x) { return {x}; }

std::vector<paddle::DataType> Dtype(paddle::DataType x) { return {x}; }

PD_BUILD_OP(squares)
    .Inputs({"X"})
    .Outputs({"Out"})
    .Attrs({"factor: float"})
    .SetKernelFn(PD_KERNEL(Forward))
    .SetInferShapeFn(PD_INFER_SHAPE(Shape))
    .SetInferDtypeFn(PD_INFER_DTYPE(Dtype));

PD_BUILD_GRAD_OP(squares)
    .Inputs({"X", paddle::Grad("Out")})
    .Outputs({paddle::Grad("X")})
    .Attrs({"factor: float"})
    .SetKernelFn(PD_KERNEL(Backward));
