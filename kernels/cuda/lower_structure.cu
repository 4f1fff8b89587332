// Ops that move elements or make them. Elements move as words of their size, whatever their dtype.
#include "graph/base/philox.h"
#include "kernels/cuda/body_places.h"
#include "kernels/cuda/kernel_math.cuh"
#include "kernels/cuda/lowering.h"
#include "kernels/cuda/row_copies.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

namespace sgactor::kernels::cuda {
namespace {

using graph::Op;
using graph::ValueId;

constexpr int kThreads = 256;

__device__ __forceinline__ int64_t first_index() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ __forceinline__ int64_t index_step() {
  return static_cast<int64_t>(gridDim.x) * blockDim.x;
}

/// Element i of a result lies at sum(index[d] * stride[d]) of the operand.
struct Strided {
  int rank = 0;
  int64_t dims[graph::kMaxRank] = {};
  int64_t strides[graph::kMaxRank] = {};
};

template <class I, class W>
__global__ void strided_kernel(Strided s, int64_t n, W* y, const W* x) {
  for (int64_t i = first_index(); i < n; i += index_step()) {
    I rest = static_cast<I>(i);
    int64_t from = 0;
    for (int d = s.rank - 1; d >= 0; --d) {
      const I extent = static_cast<I>(s.dims[d]);
      const I quotient = rest / extent;
      from += static_cast<int64_t>(rest - quotient * extent) * s.strides[d];
      rest = quotient;
    }
    y[i] = x[from];
  }
}

/// Runs f with a word of `bytes` bytes.
template <class F>
void by_size(int64_t bytes, F&& f) {
  if (bytes == 16) f(Tag<uint4>{});
  if (bytes == 8) f(Tag<uint64_t>{});
  if (bytes == 4) f(Tag<uint32_t>{});
  if (bytes == 2) f(Tag<uint16_t>{});
  if (bytes == 1) f(Tag<uint8_t>{});
}

/// Neighbouring dims that are contiguous in the operand too become one; a contiguous last dim is
/// moved in the widest words that divide it. Returns the size of a word.
int64_t simplify(Strided& s, int64_t element_bytes) {
  Strided out;
  for (int d = 0; d < s.rank; ++d) {
    if (s.dims[d] == 1) continue;
    if (out.rank > 0 && out.strides[out.rank - 1] == s.dims[d] * s.strides[d]) {
      out.dims[out.rank - 1] *= s.dims[d];
      out.strides[out.rank - 1] = s.strides[d];
    } else {
      out.dims[out.rank] = s.dims[d];
      out.strides[out.rank++] = s.strides[d];
    }
  }
  int64_t word = 1;
  if (out.rank > 0 && out.strides[out.rank - 1] == 1) {
    int64_t common = out.dims[out.rank - 1];
    for (int d = 0; d + 1 < out.rank; ++d) common = std::gcd(common, out.strides[d]);
    while (element_bytes * word * 2 <= 16 && common % (word * 2) == 0) word *= 2;
    out.dims[out.rank - 1] /= word;
    for (int d = 0; d + 1 < out.rank; ++d) out.strides[d] /= word;
  }
  s = out;
  return element_bytes * word;
}

void add_strided(Lowering& low, ValueId y, ValueId x, Strided s) {
  const int64_t total = low.type(y).bytes();
  const int64_t word = simplify(s, dtype_bytes(low.type(y).dtype));
  by_size(word, [&](auto tag) {
    using W = typename decltype(tag)::type;
    low.add([=](const Frame& f) -> Status {
      const int64_t n = total / word;
      if (n == 0) return {};
      const W* from = f.at<W>(x);
      if (n < (int64_t{1} << 31)) {
        strided_kernel<uint32_t>
            <<<blocks_for(n, kThreads), kThreads, 0, f.stream>>>(s, n, f.at<W>(y), from);
      } else {
        strided_kernel<uint64_t>
            <<<blocks_for(n, kThreads), kThreads, 0, f.stream>>>(s, n, f.at<W>(y), from);
      }
      return launched();
    });
  });
}

std::vector<int64_t> strides_of(const Shape& shape) {
  std::vector<int64_t> strides(static_cast<size_t>(shape.rank()), 1);
  for (int d = shape.rank() - 2; d >= 0; --d)
    strides[static_cast<size_t>(d)] = strides[static_cast<size_t>(d) + 1] * shape.dim(d + 1);
  return strides;
}

/// A tensor seen as [outer, extent of axis * inner].
struct AxisView {
  int64_t outer = 1;
  int64_t inner = 1;
};
AxisView axis_view(const Shape& shape, int64_t axis) {
  AxisView v;
  for (int d = 0; d < shape.rank(); ++d) (d < axis ? v.outer : v.inner) *= shape.dim(d);
  return v;
}

Status copy_bytes(const Frame& f, std::byte* to, const std::byte* from, int64_t bytes) {
  return cuda_status(
      cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, f.stream));
}

/// Copies rows of `width` bytes between two pitches.
Status copy_rows(const Frame& f, std::byte* to, int64_t to_pitch, const std::byte* from,
                 int64_t from_pitch, int64_t width, int64_t rows) {
  switch (row_copy(rows, width, to_pitch, from_pitch)) {
    case RowCopy::kNone:
      return {};
    case RowCopy::kOne:
      return copy_bytes(f, to, from, width * rows);
    case RowCopy::kPitched:
      return cuda_status(cudaMemcpy2DAsync(to, static_cast<size_t>(to_pitch), from,
                                           static_cast<size_t>(from_pitch),
                                           static_cast<size_t>(width), static_cast<size_t>(rows),
                                           cudaMemcpyDeviceToDevice, f.stream));
    case RowCopy::kEach:
      for (int64_t i = 0; i < rows; ++i)
        SGA_TRY(copy_bytes(f, to + i * to_pitch, from + i * from_pitch, width));
      return {};
  }
  return {};
}

/// Small parts that one launch puts behind one another: a copy of its own each takes longer to
/// start than to run.
struct Parts {
  static constexpr size_t kMost = 192;
  const std::byte* from[kMost];
  uint32_t at[kMost];  ///< bytes from the start of the result
  uint32_t bytes[kMost];
};
static_assert(sizeof(Parts) + sizeof(std::byte*) <= 4096, "a kernel's arguments");
constexpr int64_t kSmallPart = int64_t{16} << 10;

/// A block a part.
__global__ void concat_kernel(const __grid_constant__ Parts parts, std::byte* y) {
  const std::byte* from = parts.from[blockIdx.x];
  std::byte* to = y + parts.at[blockIdx.x];
  const uint32_t bytes = parts.bytes[blockIdx.x];
  const uintptr_t grain = reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to);
  if ((grain | bytes) % sizeof(uint32_t) == 0) {
    const auto* word = reinterpret_cast<const uint32_t*>(from);
    for (uint32_t i = threadIdx.x; i < bytes / sizeof(uint32_t); i += blockDim.x)
      reinterpret_cast<uint32_t*>(to)[i] = word[i];
  } else {
    for (uint32_t i = threadIdx.x; i < bytes; i += blockDim.x) to[i] = from[i];
  }
}

/// Appends steps that join operands of `bytes` each, which lie whole in the result.
void add_small_concat(Lowering& low, const Op& op, const std::vector<int64_t>& bytes) {
  const ValueId y = op.results[0];
  int64_t at = 0;
  for (size_t begin = 0; begin < bytes.size(); begin += Parts::kMost) {
    const size_t end = std::min(begin + Parts::kMost, bytes.size());
    const std::vector<ValueId> from(op.operands.begin() + static_cast<std::ptrdiff_t>(begin),
                                    op.operands.begin() + static_cast<std::ptrdiff_t>(end));
    Parts parts{};
    for (size_t i = begin; i < end; ++i) {
      parts.at[i - begin] = static_cast<uint32_t>(at);
      parts.bytes[i - begin] = static_cast<uint32_t>(bytes[i]);
      at += bytes[i];
    }
    low.add([=](const Frame& f) -> Status {
      Parts p = parts;
      for (size_t i = 0; i < from.size(); ++i) p.from[i] = f.values[from[i]];
      concat_kernel<<<static_cast<unsigned>(from.size()), 128, 0, f.stream>>>(p, f.values[y]);
      return launched();
    });
  }
}

template <class W>
__global__ void fill_kernel(int64_t n, W* y, W value) {
  for (int64_t i = first_index(); i < n; i += index_step()) y[i] = value;
}

template <class T>
__global__ void philox_kernel(int64_t n, T* y, const int64_t* key) {
  const PhiloxStream stream{static_cast<uint64_t>(key[0]), static_cast<uint64_t>(key[1])};
  for (int64_t i = first_index(); i < n; i += index_step())
    y[i] = narrow<T>(stream.uniform(static_cast<uint64_t>(i)));
}

template <class T>
__global__ void causal_mask_kernel(int64_t n, int64_t rows, int64_t columns, T fill, T* y,
                                   const T* x) {
  for (int64_t i = first_index(); i < n; i += index_step()) {
    const int64_t s = i % columns;
    const int64_t t = i / columns % rows;
    y[i] = s <= t + (columns - rows) ? x[i] : fill;
  }
}

template <class T>
T host_narrow(double x) {
  if constexpr (std::is_same_v<T, bf16>) {
    return __double2bfloat16(x);
  } else {
    return static_cast<T>(x);
  }
}

}  // namespace

Status lower_reshape(Lowering& low, const Op& op) {
  const ValueId x = op.operands[0];
  const ValueId y = op.results[0];
  const int64_t bytes = low.type(y).bytes();
  low.add([=](const Frame& f) -> Status {
    if (f.values[x] == f.values[y] || bytes == 0) return {};
    return copy_bytes(f, f.values[y], f.values[x], bytes);
  });
  return {};
}

Status lower_transpose(Lowering& low, const Op& op) {
  const Shape& to = low.type(op.results[0]).shape;
  const std::vector<int64_t> from = strides_of(low.type(op.operands[0]).shape);
  Strided s;
  s.rank = to.rank();
  for (int d = 0; d < s.rank; ++d) {
    s.dims[d] = to.dim(d);
    s.strides[d] = from[static_cast<size_t>(op.attrs.list("perm")[static_cast<size_t>(d)])];
  }
  add_strided(low, op.results[0], op.operands[0], s);
  return {};
}

Status lower_broadcast(Lowering& low, const Op& op) {
  const Shape& to = low.type(op.results[0]).shape;
  const std::vector<int64_t>& axes = op.attrs.list("axes");
  const std::vector<int64_t> from = strides_of(low.type(op.operands[0]).shape);
  Strided s;
  s.rank = to.rank();
  size_t next = 0;
  for (int d = 0; d < s.rank; ++d) {
    s.dims[d] = to.dim(d);
    s.strides[d] = std::find(axes.begin(), axes.end(), d) != axes.end() ? 0 : from[next++];
  }
  add_strided(low, op.results[0], op.operands[0], s);
  return {};
}

Status lower_slice(Lowering& low, const Op& op) {
  const ValueId x = op.operands[0];
  const ValueId y = op.results[0];
  const int64_t size = dtype_bytes(low.type(x).dtype);
  const AxisView from = axis_view(low.type(x).shape, op.attrs.i64("axis"));
  const AxisView to = axis_view(low.type(y).shape, op.attrs.i64("axis"));
  const int64_t extent = low.type(x).shape.dim(static_cast<int>(op.attrs.i64("axis")));
  const int64_t start = extent == 0 ? 0 : op.attrs.i64("start") * (from.inner / extent);
  low.add([=](const Frame& f) {
    return copy_rows(f, f.values[y], to.inner * size, f.values[x] + start * size, from.inner * size,
                     to.inner * size, to.outer);
  });
  return {};
}

Status lower_pad(Lowering& low, const Op& op) {
  const ValueId x = op.operands[0];
  const ValueId y = op.results[0];
  const int64_t size = dtype_bytes(low.type(x).dtype);
  const int64_t axis = op.attrs.i64("axis");
  const AxisView from = axis_view(low.type(x).shape, axis);
  const AxisView to = axis_view(low.type(y).shape, axis);
  const int64_t extent = low.type(y).shape.dim(static_cast<int>(axis));
  const int64_t start = extent == 0 ? 0 : op.attrs.i64("before") * (to.inner / extent);
  const int64_t bytes = low.type(y).bytes();
  low.add([=](const Frame& f) -> Status {
    if (bytes == 0) return {};
    SGA_CUDA_TRY(cudaMemsetAsync(f.values[y], 0, static_cast<size_t>(bytes), f.stream));
    return copy_rows(f, f.values[y] + start * size, to.inner * size, f.values[x], from.inner * size,
                     from.inner * size, from.outer);
  });
  return {};
}

Status lower_concat(Lowering& low, const Op& op) {
  const ValueId y = op.results[0];
  const int64_t size = dtype_bytes(low.type(y).dtype);
  const AxisView to = axis_view(low.type(y).shape, op.attrs.i64("axis"));
  std::vector<int64_t> bytes;
  for (const ValueId x : op.operands) bytes.push_back(low.type(x).bytes());
  const int64_t largest = *std::max_element(bytes.begin(), bytes.end());
  if (bytes.size() > 1 && to.outer == 1 && largest <= kSmallPart &&
      low.type(y).bytes() <= std::numeric_limits<uint32_t>::max()) {
    add_small_concat(low, op, bytes);
    return {};
  }
  int64_t start = 0;
  for (const ValueId x : op.operands) {
    const AxisView from = axis_view(low.type(x).shape, op.attrs.i64("axis"));
    low.add([=](const Frame& f) {
      return copy_rows(f, f.values[y] + start * size, to.inner * size, f.values[x],
                       from.inner * size, from.inner * size, from.outer);
    });
    start += from.inner;
  }
  return {};
}

Status lower_constant(Lowering& low, const Op& op) {
  if (is_zero_start(low.body(), op)) return {};
  const ValueId y = op.results[0];
  const int64_t n = low.type(y).num_elements();
  const double value = op.attrs.f64("value");
  const auto fill = [&](auto word) {
    using W = decltype(word);
    low.add([=](const Frame& f) -> Status {
      if (n == 0) return {};
      fill_kernel<<<blocks_for(n, kThreads), kThreads, 0, f.stream>>>(n, f.at<W>(y), word);
      return launched();
    });
  };
  switch (low.type(y).dtype) {
    case DType::kF64:
      fill(value);
      return {};
    case DType::kF32:
      fill(static_cast<float>(value));
      return {};
    case DType::kBF16:
      fill(host_narrow<bf16>(value));
      return {};
    case DType::kI64:
      fill(static_cast<int64_t>(value));
      return {};
    case DType::kI32:
      fill(static_cast<int32_t>(value));
      return {};
    case DType::kU8:
      fill(static_cast<uint8_t>(value));
      return {};
    default:
      return low.no_kernel(op);
  }
}

Status lower_philox_uniform(Lowering& low, const Op& op) {
  const ValueId key = op.operands[0];
  const ValueId y = op.results[0];
  const int64_t n = low.type(y).num_elements();
  const bool known = by_float(low.type(y).dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    low.add([=](const Frame& f) -> Status {
      if (n == 0) return {};
      philox_kernel<<<blocks_for(n, kThreads), kThreads, 0, f.stream>>>(n, f.at<T>(y),
                                                                        f.at<int64_t>(key));
      return launched();
    });
  });
  return known ? Status() : low.no_kernel(op);
}

Status lower_causal_mask(Lowering& low, const Op& op) {
  const ValueId x = op.operands[0];
  const ValueId y = op.results[0];
  const Shape& shape = low.type(x).shape;
  const int64_t n = shape.num_elements();
  const int64_t rows = shape.dim(-2);
  const int64_t columns = shape.dim(-1);
  const double fill = op.attrs.f64("fill");
  const bool known = by_float(low.type(x).dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T value = host_narrow<T>(fill);
    low.add([=](const Frame& f) -> Status {
      if (n == 0) return {};
      causal_mask_kernel<<<blocks_for(n, kThreads), kThreads, 0, f.stream>>>(
          n, rows, columns, value, f.at<T>(y), f.at<T>(x));
      return launched();
    });
  });
  return known ? Status() : low.no_kernel(op);
}

}  // namespace sgactor::kernels::cuda
