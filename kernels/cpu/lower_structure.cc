#include "kernels/cpu/lowering.h"

#include <cstring>
#include <vector>

namespace sgactor::kernels::cpu {
namespace {

using graph::Op;
using graph::ValueId;

/// A dense tensor seen as [outer, rows, inner bytes] around one axis.
struct AxisView {
  int64_t outer = 1;
  int64_t rows = 1;
  int64_t inner_bytes = 1;
};

AxisView around(const TensorType& type, int64_t axis) {
  AxisView v{.outer = 1, .rows = 1, .inner_bytes = dtype_bytes(type.dtype)};
  for (int d = 0; d < type.shape.rank(); ++d) {
    const int64_t extent = type.shape.dim(d);
    if (d < axis) v.outer *= extent;
    if (d == axis) v.rows = extent;
    if (d > axis) v.inner_bytes *= extent;
  }
  return v;
}

/// `count` runs of `bytes`, from x + i * from_stride to y + i * to_stride.
struct RunCopy {
  int64_t count, bytes, to_stride, from_stride;

  void operator()(const Frame& f, std::byte* y, const std::byte* x) const {
    if (bytes == 0) return;
    const int64_t per_block = std::max<int64_t>(1, 64 * kKiB / bytes);
    for_blocks(f, count, per_block, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        std::memcpy(y + i * to_stride, x + i * from_stride, static_cast<size_t>(bytes));
      }
    });
  }
};

/// Strides in elements of a dense row-major shape.
std::vector<int64_t> strides_of(const std::vector<int64_t>& dims) {
  std::vector<int64_t> strides(dims.size(), 1);
  for (size_t d = dims.size(); d-- > 1;) strides[d - 1] = strides[d] * dims[d];
  return strides;
}

constexpr int kMaxDims = 8;

/// Result dims with the operand's stride for each (0 where it is repeated), neighbours merged,
/// extents of 1 dropped.
struct StridedView {
  int rank = 0;
  int64_t extent[kMaxDims] = {};
  int64_t stride[kMaxDims] = {};

  void push(int64_t e, int64_t s) {
    if (e == 1) return;
    if (rank > 0 && stride[rank - 1] == s * e) {
      extent[rank - 1] *= e;
      stride[rank - 1] = s;
      return;
    }
    extent[rank] = e;
    stride[rank] = s;
    ++rank;
  }
  /// Operand offset of row `index` of the dims before `last`.
  [[nodiscard]] int64_t offset(int64_t index, int last) const {
    int64_t at = 0;
    for (int d = last - 1; d >= 0; --d) {
      at += index % extent[d] * stride[d];
      index /= extent[d];
    }
    return at;
  }
};

constexpr int64_t kTile = 16;

/// As KernelTable::transpose.
template <class T>
void transpose_tile(const KernelTable& k, T* y, const T* x, int64_t y_stride, int64_t x_stride,
                    int64_t rows, int64_t columns) {
  if constexpr (sizeof(T) == sizeof(float)) {
    k.transpose(reinterpret_cast<float*>(y), reinterpret_cast<const float*>(x), y_stride, x_stride,
                rows, columns);
    return;
  }
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) y[i * y_stride + j] = x[j * x_stride + i];
  }
}

/// A permutation whose last dim moves: batches of 2-D transpositions.
struct Transposition {
  StridedView batch_in, batch_out;  ///< extents equal, strides of operand and result
  int64_t num_batches = 1;
  int64_t rows = 1, columns = 1;  ///< of the result's plane: rows walk x's last dim
  int64_t y_stride = 1, x_stride = 1;
};

template <class T>
Step transpose_step(const KernelTable* k, ValueId y_id, ValueId x_id, const Transposition& t) {
  return [=](const Frame& f) -> Status {
    T* y = f.ptr<T>(y_id);
    const T* x = f.ptr<T>(x_id);
    const int64_t tiles = ceil_div(t.rows, kTile);
    const int64_t per_block = std::max<int64_t>(1, kPointwiseBlock / (kTile * t.columns));
    for_blocks(f, t.num_batches * tiles, per_block, [&](int64_t begin, int64_t end) {
      for (int64_t index = begin; index < end; ++index) {
        const int64_t batch = index / tiles;
        const int64_t i = index % tiles * kTile;
        T* to = y + t.batch_out.offset(batch, t.batch_out.rank) + i * t.y_stride;
        const T* from = x + t.batch_in.offset(batch, t.batch_in.rank) + i;
        transpose_tile(*k, to, from, t.y_stride, t.x_stride, std::min(kTile, t.rows - i),
                       t.columns);
      }
    });
    return {};
  };
}

/// The view's innermost dim is contiguous in both: runs of memcpy, in order of the result.
Step strided_copy_step(ValueId y_id, ValueId x_id, const StridedView& v, int64_t element_bytes) {
  const int outer = v.rank - 1;
  const int64_t run = v.extent[outer] * element_bytes;
  int64_t count = 1;
  for (int d = 0; d < outer; ++d) count *= v.extent[d];
  return [=](const Frame& f) -> Status {
    auto* y = f.ptr<std::byte>(y_id);
    const auto* x = f.ptr<std::byte>(x_id);
    for_blocks(f, count, std::max<int64_t>(1, 64 * kKiB / run), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        std::memcpy(y + i * run, x + v.offset(i, outer) * element_bytes, static_cast<size_t>(run));
      }
    });
    return {};
  };
}

/// Any strides, element by element.
template <class T>
Step strided_gather_step(ValueId y_id, ValueId x_id, const StridedView& v, int64_t n) {
  return [=](const Frame& f) -> Status {
    T* y = f.ptr<T>(y_id);
    const T* x = f.ptr<T>(x_id);
    const int last = std::max(v.rank - 1, 0);
    const int64_t row = v.rank == 0 ? 1 : v.extent[last];
    for_blocks(f, n / row, rows_per_block(row), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const T* from = x + v.offset(i, last);
        for (int64_t j = 0; j < row; ++j) y[i * row + j] = from[j * v.stride[last]];
      }
    });
    return {};
  };
}

template <template <class> class MakeStep, class... Args>
Step by_size(int64_t bytes, Args... args) {
  switch (bytes) {
    case 1:
      return MakeStep<uint8_t>()(args...);
    case 2:
      return MakeStep<uint16_t>()(args...);
    case 4:
      return MakeStep<uint32_t>()(args...);
    default:
      return MakeStep<uint64_t>()(args...);
  }
}
template <class T>
struct MakeTranspose {
  Step operator()(const KernelTable* k, ValueId y, ValueId x, const Transposition& t) const {
    return transpose_step<T>(k, y, x, t);
  }
};
template <class T>
struct MakeGather {
  Step operator()(ValueId y, ValueId x, const StridedView& v, int64_t n) const {
    return strided_gather_step<T>(y, x, v, n);
  }
};

Transposition plan_transposition(const StridedView& v) {
  // Result dims in order; the dim with stride 1 is the operand's last one.
  Transposition t;
  const int last = v.rank - 1;
  std::vector<int64_t> dims(v.extent, v.extent + v.rank);
  const std::vector<int64_t> y_strides = strides_of(dims);
  for (int d = 0; d < v.rank; ++d) {
    if (d == last) {
      t.columns = v.extent[d];
      t.x_stride = v.stride[d];
    } else if (v.stride[d] == 1) {
      t.rows = v.extent[d];
      t.y_stride = y_strides[static_cast<size_t>(d)];
    } else {
      // Not push(): both views must keep the same dims.
      t.batch_in.extent[t.batch_in.rank] = v.extent[d];
      t.batch_in.stride[t.batch_in.rank++] = v.stride[d];
      t.batch_out.extent[t.batch_out.rank] = v.extent[d];
      t.batch_out.stride[t.batch_out.rank++] = y_strides[static_cast<size_t>(d)];
      t.num_batches *= v.extent[d];
    }
  }
  return t;
}

}  // namespace

Status lower_reshape(Lowering& low, const Op& op) {
  low.view(op.results[0], op.operands[0]);
  return {};
}

Status lower_transpose(Lowering& low, const Op& op) {
  const ValueId y = op.results[0];
  const ValueId x = op.operands[0];
  const TensorType& type = low.type(x);
  if (type.shape.rank() > kMaxDims) return low.no_kernel(op);
  if (type.num_elements() == 0) return {};
  const std::vector<int64_t>& perm = op.attrs.list("perm");
  const std::vector<int64_t> strides = strides_of(type.shape.dims());
  StridedView v;
  for (int64_t p : perm) {
    v.push(type.shape.dim(static_cast<int>(p)), strides[static_cast<size_t>(p)]);
  }
  const int64_t bytes = dtype_bytes(type.dtype);
  if (v.rank == 0) {
    low.add(by_size<MakeGather>(bytes, y, x, v, int64_t{1}));
  } else if (v.stride[v.rank - 1] == 1) {
    low.add(strided_copy_step(y, x, v, bytes));
  } else {
    low.add(by_size<MakeTranspose>(bytes, &low.kernels(), y, x, plan_transposition(v)));
  }
  return {};
}

Status lower_slice(Lowering& low, const Op& op) {
  const ValueId y = op.results[0];
  const ValueId x = op.operands[0];
  const AxisView v = around(low.type(x), op.attrs.i64("axis"));
  const int64_t start = op.attrs.i64("start") * v.inner_bytes;
  const int64_t run = op.attrs.i64("size") * v.inner_bytes;
  const RunCopy copy{
      .count = v.outer, .bytes = run, .to_stride = run, .from_stride = v.rows * v.inner_bytes};
  low.add([=](const Frame& f) -> Status {
    copy(f, f.ptr<std::byte>(y), f.ptr<std::byte>(x) + start);
    return {};
  });
  return {};
}

Status lower_pad(Lowering& low, const Op& op) {
  const ValueId y = op.results[0];
  const ValueId x = op.operands[0];
  const int64_t axis = op.attrs.i64("axis");
  const AxisView in = around(low.type(x), axis);
  const AxisView out = around(low.type(y), axis);
  const int64_t before = op.attrs.i64("before") * in.inner_bytes;
  const int64_t run = in.rows * in.inner_bytes;
  const int64_t stride = out.rows * out.inner_bytes;
  low.add([=](const Frame& f) -> Status {
    auto* to = f.ptr<std::byte>(y);
    const auto* from = f.ptr<std::byte>(x);
    const int64_t per_block = std::max<int64_t>(1, 64 * kKiB / std::max<int64_t>(stride, 1));
    for_blocks(f, in.outer, per_block, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        std::byte* row = to + i * stride;
        std::memset(row, 0, static_cast<size_t>(before));
        std::memcpy(row + before, from + i * run, static_cast<size_t>(run));
        std::memset(row + before + run, 0, static_cast<size_t>(stride - before - run));
      }
    });
    return {};
  });
  return {};
}

Status lower_concat(Lowering& low, const Op& op) {
  const ValueId y = op.results[0];
  const int64_t axis = op.attrs.i64("axis");
  const AxisView out = around(low.type(y), axis);
  const int64_t stride = out.rows * out.inner_bytes;
  int64_t at = 0;
  for (ValueId x : op.operands) {
    const int64_t run = around(low.type(x), axis).rows * out.inner_bytes;
    const RunCopy copy{.count = out.outer, .bytes = run, .to_stride = stride, .from_stride = run};
    low.add([=](const Frame& f) -> Status {
      copy(f, f.ptr<std::byte>(y) + at, f.ptr<std::byte>(x));
      return {};
    });
    at += run;
  }
  return {};
}

Status lower_broadcast(Lowering& low, const Op& op) {
  const ValueId y = op.results[0];
  const ValueId x = op.operands[0];
  const TensorType& to = low.type(y);
  const TensorType& from = low.type(x);
  if (to.shape.rank() > kMaxDims) return low.no_kernel(op);
  if (to.num_elements() == 0) return {};
  const std::vector<int64_t>& axes = op.attrs.list("axes");
  const std::vector<int64_t> strides = strides_of(from.shape.dims());
  StridedView v;
  size_t next = 0;
  for (int d = 0; d < to.shape.rank(); ++d) {
    const bool repeated = std::find(axes.begin(), axes.end(), d) != axes.end();
    v.push(to.shape.dim(d), repeated ? 0 : strides[next]);
    if (!repeated) ++next;
  }
  const int64_t bytes = dtype_bytes(to.dtype);
  if (v.rank > 0 && v.stride[v.rank - 1] == 1) {
    low.add(strided_copy_step(y, x, v, bytes));
  } else {
    low.add(by_size<MakeGather>(bytes, y, x, v, to.num_elements()));
  }
  return {};
}

}  // namespace sgactor::kernels::cpu
