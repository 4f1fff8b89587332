#include "kernels/cpu/lowering.h"

#include <cstring>
#include <limits>
#include <vector>

namespace sgactor::kernels::cpu {
namespace {

using graph::Op;
using graph::OpKind;
using graph::ValueId;

/// Dims of the operand, neighbours of one kind merged; extents of 1 dropped.
struct MergedDims {
  std::vector<int64_t> extent;
  std::vector<bool> reduced;
};

MergedDims merge(const Shape& shape, const std::vector<int64_t>& axes) {
  MergedDims m;
  for (int d = 0; d < shape.rank(); ++d) {
    const bool reduced = std::find(axes.begin(), axes.end(), d) != axes.end();
    if (shape.dim(d) == 1) continue;
    if (!m.extent.empty() && m.reduced.back() == reduced) {
      m.extent.back() *= shape.dim(d);
    } else {
      m.extent.push_back(shape.dim(d));
      m.reduced.push_back(reduced);
    }
  }
  return m;
}

template <class T>
T start_of(bool is_max) {
  return is_max ? -std::numeric_limits<T>::infinity() : T{0};
}

template <class T>
T reduce_run(const KernelTable& k, bool is_max, const T* x, int64_t n) {
  if constexpr (std::is_same_v<T, float>) {
    return is_max ? k.max(x, n) : k.sum(x, n);
  } else {
    T acc = start_of<T>(is_max);
    for (int64_t i = 0; i < n; ++i) acc = is_max ? std::max(acc, x[i]) : acc + x[i];
    return acc;
  }
}

/// Everything to one number: partial results of fixed blocks, then those in order.
template <class T>
Step reduce_all(Lowering& low, ValueId y, ValueId x, int64_t n, bool is_max) {
  low.need_scratch(ceil_div(n, kPointwiseBlock) * dtype_bytes(low.type(x).dtype));
  return [=, k = &low.kernels()](const Frame& f) -> Status {
    const T* from = f.ptr<T>(x);
    T* partial = reinterpret_cast<T*>(f.scratch);
    const int64_t blocks = ceil_div(n, kPointwiseBlock);
    if (blocks <= 1) {
      *f.ptr<T>(y) = reduce_run(*k, is_max, from, n);
      return {};
    }
    for_blocks(f, n, kPointwiseBlock, [&](int64_t begin, int64_t end) {
      partial[begin / kPointwiseBlock] = reduce_run(*k, is_max, from + begin, end - begin);
    });
    *f.ptr<T>(y) = reduce_run(*k, is_max, partial, blocks);
    return {};
  };
}

template <class T>
Step reduce_rows(Lowering& low, ValueId y, ValueId x, int64_t rows, int64_t columns, bool is_max) {
  return [=, k = &low.kernels()](const Frame& f) -> Status {
    T* to = f.ptr<T>(y);
    const T* from = f.ptr<T>(x);
    for_blocks(f, rows, rows_per_block(columns), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        to[r] = reduce_run(*k, is_max, from + r * columns, columns);
      }
    });
    return {};
  };
}

template <class T>
void merge_row(const KernelTable& k, bool is_max, T* acc, const T* x, int64_t n) {
  if constexpr (std::is_same_v<T, float>) {
    k.binary[is_max ? kMax : kAdd](acc, acc, x, n);
  } else {
    for (int64_t i = 0; i < n; ++i) acc[i] = is_max ? std::max(acc[i], x[i]) : acc[i] + x[i];
  }
}

/// [outer, reduced, inner]: rows added in order, parallel over outer and slices of inner.
template <class T>
Step reduce_middle(Lowering& low, ValueId y, ValueId x, int64_t outer, int64_t reduced,
                   int64_t inner, bool is_max) {
  constexpr int64_t kSlice = 128;
  return [=, k = &low.kernels()](const Frame& f) -> Status {
    T* to = f.ptr<T>(y);
    const T* from = f.ptr<T>(x);
    const int64_t slices = ceil_div(inner, kSlice);
    const int64_t per_block = rows_per_block(reduced * kSlice);
    for_blocks(f, outer * slices, per_block, [&](int64_t begin, int64_t end) {
      for (int64_t index = begin; index < end; ++index) {
        const int64_t o = index / slices;
        const int64_t column = index % slices * kSlice;
        const int64_t n = std::min(kSlice, inner - column);
        T* acc = to + o * inner + column;
        const T* row = from + o * reduced * inner + column;
        std::memcpy(acc, row, static_cast<size_t>(n) * sizeof(T));
        for (int64_t r = 1; r < reduced; ++r) merge_row(*k, is_max, acc, row + r * inner, n);
      }
    });
    return {};
  };
}

/// Any pattern: each result walks its reduced indices in order.
template <class T>
Step reduce_general(ValueId y, ValueId x, const MergedDims& dims, bool is_max) {
  std::vector<int64_t> kept_extent, kept_stride, reduced_extent, reduced_stride;
  int64_t stride = 1;
  int64_t kept = 1;
  int64_t reduced = 1;
  for (size_t d = dims.extent.size(); d-- > 0;) {
    (dims.reduced[d] ? reduced_extent : kept_extent).push_back(dims.extent[d]);
    (dims.reduced[d] ? reduced_stride : kept_stride).push_back(stride);
    (dims.reduced[d] ? reduced : kept) *= dims.extent[d];
    stride *= dims.extent[d];
  }
  return [=](const Frame& f) -> Status {
    const auto offset = [](int64_t index, const std::vector<int64_t>& extents,
                           const std::vector<int64_t>& strides) {
      int64_t at = 0;
      for (size_t d = 0; d < extents.size(); ++d) {
        at += index % extents[d] * strides[d];
        index /= extents[d];
      }
      return at;
    };
    T* to = f.ptr<T>(y);
    const T* from = f.ptr<T>(x);
    for_blocks(f, kept, rows_per_block(reduced), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const T* base = from + offset(i, kept_extent, kept_stride);
        T acc = start_of<T>(is_max);
        for (int64_t r = 0; r < reduced; ++r) {
          const T v = base[offset(r, reduced_extent, reduced_stride)];
          acc = is_max ? std::max(acc, v) : acc + v;
        }
        to[i] = acc;
      }
    });
    return {};
  };
}

template <class T>
Step reduce_step(Lowering& low, const Op& op) {
  const ValueId y = op.results[0];
  const ValueId x = op.operands[0];
  const bool is_max = op.kind == OpKind::kReduceMax;
  const MergedDims dims = merge(low.type(x).shape, op.attrs.list("axes"));
  const auto& e = dims.extent;
  const auto& r = dims.reduced;
  const size_t rank = e.size();
  if (rank == 0) return reduce_all<T>(low, y, x, 1, is_max);
  if (rank == 1 && r[0]) return reduce_all<T>(low, y, x, e[0], is_max);
  if (rank == 2 && r[1]) return reduce_rows<T>(low, y, x, e[0], e[1], is_max);
  // An empty reduced dim has no first row to start from.
  const bool empty = low.type(x).num_elements() == 0;
  if (rank == 1 && !empty) return reduce_middle<T>(low, y, x, 1, 1, e[0], is_max);
  if (rank == 2 && r[0] && !empty) return reduce_middle<T>(low, y, x, 1, e[0], e[1], is_max);
  if (rank == 3 && r[1] && !empty) return reduce_middle<T>(low, y, x, e[0], e[1], e[2], is_max);
  return reduce_general<T>(y, x, dims, is_max);
}

}  // namespace

Status lower_reduce(Lowering& low, const Op& op) {
  if (all_of_type(low, op, DType::kF32)) {
    low.add(reduce_step<float>(low, op));
  } else if (all_of_type(low, op, DType::kF64)) {
    low.add(reduce_step<double>(low, op));
  } else {
    return low.no_kernel(op);
  }
  return {};
}

Status lower_sum_squares(Lowering& low, const Op& op) {
  const ValueId y = op.results[0];
  const ValueId x = op.operands[0];
  const int64_t n = low.type(x).num_elements();
  const int64_t chunk = op.attrs.i64("chunk");
  const int64_t chunks = ceil_div(n, chunk);
  const int64_t per_block = rows_per_block(chunk);
  if (all_of_type(low, op, DType::kF32)) {
    low.add([=, fn = low.kernels().sum_squares](const Frame& f) -> Status {
      for_blocks(f, chunks, per_block, [&](int64_t begin, int64_t end) {
        for (int64_t c = begin; c < end; ++c) {
          const float* from = f.ptr<float>(x) + c * chunk;
          f.ptr<float>(y)[c] = static_cast<float>(fn(from, std::min(chunk, n - c * chunk)));
        }
      });
      return {};
    });
  } else if (all_of_type(low, op, DType::kF64)) {
    low.add([=](const Frame& f) -> Status {
      for_blocks(f, chunks, per_block, [&](int64_t begin, int64_t end) {
        for (int64_t c = begin; c < end; ++c) {
          const double* from = f.ptr<double>(x) + c * chunk;
          double total = 0;
          for (int64_t i = 0; i < std::min(chunk, n - c * chunk); ++i) total += from[i] * from[i];
          f.ptr<double>(y)[c] = total;
        }
      });
      return {};
    });
  } else {
    return low.no_kernel(op);
  }
  return {};
}

namespace {

template <class T>
Step tree_sum_step(ValueId y, ValueId x, int64_t n) {
  return [=](const Frame& f) -> Status {
    T* level = reinterpret_cast<T*>(f.scratch);
    if (n == 0) {
      *f.ptr<T>(y) = T{0};
      return {};
    }
    std::memcpy(level, f.ptr<T>(x), static_cast<size_t>(n) * sizeof(T));
    for (int64_t width = n; width > 1; width = (width + 1) / 2) {
      for (int64_t i = 0; i < width / 2; ++i) level[i] = level[2 * i] + level[2 * i + 1];
      if (width % 2 != 0) level[width / 2] = level[width - 1];
    }
    *f.ptr<T>(y) = level[0];
    return {};
  };
}

}  // namespace

Status lower_tree_sum(Lowering& low, const Op& op) {
  const ValueId y = op.results[0];
  const ValueId x = op.operands[0];
  const int64_t n = low.type(x).num_elements();
  low.need_scratch(low.type(x).bytes());
  if (all_of_type(low, op, DType::kF32)) {
    low.add(tree_sum_step<float>(y, x, n));
  } else if (all_of_type(low, op, DType::kF64)) {
    low.add(tree_sum_step<double>(y, x, n));
  } else {
    return low.no_kernel(op);
  }
  return {};
}

}  // namespace sgactor::kernels::cpu
