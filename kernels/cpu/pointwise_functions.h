#pragma once
#include "graph/ir/op_kind.h"
#include "kernels/cpu/kernel_table.h"

#include <cmath>
#include <optional>

namespace sgactor::kernels::cpu {

/// Which entries of the kernel table, or plain functions, pointwise ops use.

/// Vector loops for f32; nothing where the table has none.
inline std::optional<Binary> vector_binary(graph::OpKind kind) {
  switch (kind) {
    case graph::OpKind::kAdd:
      return kAdd;
    case graph::OpKind::kSub:
      return kSub;
    case graph::OpKind::kMul:
      return kMul;
    case graph::OpKind::kDiv:
      return kDiv;
    case graph::OpKind::kMinimum:
      return kMin;
    case graph::OpKind::kMaximum:
      return kMax;
    default:
      return std::nullopt;
  }
}

inline std::optional<Unary> vector_unary(graph::OpKind kind) {
  switch (kind) {
    case graph::OpKind::kNeg:
      return kNeg;
    case graph::OpKind::kExp:
      return kExp;
    case graph::OpKind::kSqrt:
      return kSqrt;
    case graph::OpKind::kRsqrt:
      return kRsqrt;
    case graph::OpKind::kSquare:
      return kSquare;
    case graph::OpKind::kSigmoid:
      return kSigmoid;
    case graph::OpKind::kSilu:
      return kSilu;
    case graph::OpKind::kScale:
      return kScale;
    case graph::OpKind::kAddScalar:
      return kAddScalar;
    default:
      return std::nullopt;
  }
}

/// One element; T is float or double.
template <class T>
using BinaryFn = T (*)(T, T);
template <class T>
using UnaryFn = T (*)(T, T param);

template <class T>
BinaryFn<T> scalar_binary(graph::OpKind kind) {
  switch (kind) {
    case graph::OpKind::kAdd:
      return [](T a, T b) { return a + b; };
    case graph::OpKind::kSub:
      return [](T a, T b) { return a - b; };
    case graph::OpKind::kMul:
      return [](T a, T b) { return a * b; };
    case graph::OpKind::kDiv:
      return [](T a, T b) { return a / b; };
    case graph::OpKind::kMinimum:
      return [](T a, T b) { return b < a ? b : a; };
    case graph::OpKind::kMaximum:
      return [](T a, T b) { return b > a ? b : a; };
    default:
      return [](T a, T b) { return std::pow(a, b); };
  }
}

template <class T>
UnaryFn<T> scalar_unary(graph::OpKind kind) {
  switch (kind) {
    case graph::OpKind::kNeg:
      return [](T x, T) { return -x; };
    case graph::OpKind::kExp:
      return [](T x, T) { return std::exp(x); };
    case graph::OpKind::kLog:
      return [](T x, T) { return std::log(x); };
    case graph::OpKind::kSqrt:
      return [](T x, T) { return std::sqrt(x); };
    case graph::OpKind::kRsqrt:
      return [](T x, T) { return T{1} / std::sqrt(x); };
    case graph::OpKind::kSquare:
      return [](T x, T) { return x * x; };
    case graph::OpKind::kCos:
      return [](T x, T) { return std::cos(x); };
    case graph::OpKind::kSin:
      return [](T x, T) { return std::sin(x); };
    case graph::OpKind::kSigmoid:
      return [](T x, T) { return T{1} / (T{1} + std::exp(-x)); };
    case graph::OpKind::kSilu:
      return [](T x, T) { return x / (T{1} + std::exp(-x)); };
    case graph::OpKind::kScale:
      return [](T x, T p) { return x * p; };
    default:
      return [](T x, T p) { return x + p; };
  }
}

}  // namespace sgactor::kernels::cpu
