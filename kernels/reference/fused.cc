#include "graph/ir/pointwise_program.h"
#include "kernels/reference/kernels.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace sgactor::kernels::reference {
namespace {
double sigmoid_of(double x) { return 1.0 / (1.0 + std::exp(-x)); }
}  // namespace

Status accumulate(const OpCall& call) {
  for (int64_t i = 0; i < call.out[0].size(); ++i)
    call.out[0].f64()[i] = call.in[0].f64()[i] + call.in[1].f64()[i];
  return {};
}

Status swiglu(const OpCall& call) {
  for (int64_t i = 0; i < call.out[0].size(); ++i) {
    const double gate = call.in[0].f64()[i];
    call.out[0].f64()[i] = gate * sigmoid_of(gate) * call.in[1].f64()[i];
  }
  return {};
}

Status swiglu_grad(const OpCall& call) {
  for (int64_t i = 0; i < call.out[0].size(); ++i) {
    const double gate = call.in[0].f64()[i];
    const double up = call.in[1].f64()[i];
    const double dy = call.in[2].f64()[i];
    const double s = sigmoid_of(gate);
    call.out[0].f64()[i] = dy * up * s * (1.0 + (gate * (1.0 - s)));
    call.out[1].f64()[i] = dy * gate * s;
  }
  return {};
}

/// Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019, algorithm 2, with the
/// bias corrections placed as PyTorch places them.
Status adamw(const OpCall& call) {
  const graph::Attrs& a = call.op.attrs;
  const double beta1 = a.f64("beta1");
  const double beta2 = a.f64("beta2");
  const double eps = a.f64("eps");
  const double decay = a.f64("weight_decay");
  const double lr = call.in[4].f64()[0];
  const double clip = call.in[5].f64()[0];
  const double bias1 = call.in[6].f64()[0];
  const double bias2 = call.in[7].f64()[0];
  for (int64_t i = 0; i < call.out[0].size(); ++i) {
    const double g = call.in[3].f64()[i] * clip;
    const double m = (beta1 * call.in[1].f64()[i]) + ((1.0 - beta1) * g);
    const double v = (beta2 * call.in[2].f64()[i]) + ((1.0 - beta2) * g * g);
    const double p = call.in[0].f64()[i];
    call.out[0].f64()[i] =
        (p * (1.0 - (lr * decay))) - (lr / bias1 * m / ((std::sqrt(v) / std::sqrt(bias2)) + eps));
    call.out[1].f64()[i] = m;
    call.out[2].f64()[i] = v;
  }
  return {};
}

/// Every instruction as the primitive op that it is, on tensors of the result's shape.
Status fused_pointwise(const OpCall& call) {
  SGA_ASSIGN(const graph::PointwiseProgram program,
             graph::parse_pointwise_program(call.op.attrs.text("program"),
                                            static_cast<int32_t>(call.in.size())));
  const TensorType& type = *call.out[0].type;
  const auto n = static_cast<size_t>(type.num_elements());
  std::vector<std::vector<double>> values;
  for (const Tensor& operand : call.in) {
    std::vector<double>& wide = values.emplace_back(n);
    for (size_t i = 0; i < n; ++i) wide[i] = operand.f64()[i % static_cast<size_t>(operand.size())];
  }
  const auto tensor = [&](int32_t v) {
    return Tensor{&type, reinterpret_cast<std::byte*>(values[static_cast<size_t>(v)].data())};
  };
  for (const graph::PointwiseInstruction& i : program) {
    graph::Op op;
    op.kind = i.kind;
    if (i.kind == graph::OpKind::kScale) op.attrs.set("factor", i.param);
    if (i.kind == graph::OpKind::kAddScalar) op.attrs.set("value", i.param);
    values.emplace_back(n);
    const std::array<Tensor, 2> in = {tensor(i.a), tensor(i.b)};
    const std::array<Tensor, 1> out = {tensor(static_cast<int32_t>(values.size()) - 1)};
    SGA_TRY(run_op(op, std::span(in).first(graph::is_program_binary(i.kind) ? 2 : 1), out));
  }
  std::copy(values.back().begin(), values.back().end(), call.out[0].f64());
  return {};
}

}  // namespace sgactor::kernels::reference
